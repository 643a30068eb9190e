/* The MPI calls that libfaults.so can let fail: without being made, with MPI_ERR_OTHER. See faults.c. Nothing
 * but a message is to be expected of an MPI library afterwards. */
#ifdef TERCET_HAVE_MPI

#include "faults.h"

#include <errno.h>
#include <mpi.h>

/* As fault_due, as what the call returns. */
static int refused(const char *function, const void *caller)
{
    return fault_due(function, EIO, caller) ? MPI_ERR_OTHER : MPI_SUCCESS;
}

int MPI_Init_thread(int *argc, char ***argv, int wanted, int *provided)
{
    int code = refused("MPI_Init_thread", CALLER);
    return code != MPI_SUCCESS ? code : NEXT(MPI_Init_thread)(argc, argv, wanted, provided);
}

int MPI_Initialized(int *flag)
{
    int code = refused("MPI_Initialized", CALLER);
    return code != MPI_SUCCESS ? code : NEXT(MPI_Initialized)(flag);
}

int MPI_Finalize(void)
{
    int code = refused("MPI_Finalize", CALLER);
    return code != MPI_SUCCESS ? code : NEXT(MPI_Finalize)();
}

int MPI_Comm_set_errhandler(MPI_Comm comm, MPI_Errhandler handler)
{
    int code = refused("MPI_Comm_set_errhandler", CALLER);
    return code != MPI_SUCCESS ? code : NEXT(MPI_Comm_set_errhandler)(comm, handler);
}

int MPI_Comm_rank(MPI_Comm comm, int *rank)
{
    int code = refused("MPI_Comm_rank", CALLER);
    return code != MPI_SUCCESS ? code : NEXT(MPI_Comm_rank)(comm, rank);
}

int MPI_Comm_size(MPI_Comm comm, int *size)
{
    int code = refused("MPI_Comm_size", CALLER);
    return code != MPI_SUCCESS ? code : NEXT(MPI_Comm_size)(comm, size);
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *out)
{
    int code = refused("MPI_Comm_dup", CALLER);
    return code != MPI_SUCCESS ? code : NEXT(MPI_Comm_dup)(comm, out);
}

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *out)
{
    int code = refused("MPI_Comm_split_type", CALLER);
    return code != MPI_SUCCESS ? code : NEXT(MPI_Comm_split_type)(comm, type, key, info, out);
}

int MPI_Comm_free(MPI_Comm *comm)
{
    int code = refused("MPI_Comm_free", CALLER);
    return code != MPI_SUCCESS ? code : NEXT(MPI_Comm_free)(comm);
}

int MPI_Comm_get_attr(MPI_Comm comm, int key, void *value, int *found)
{
    int code = refused("MPI_Comm_get_attr", CALLER);
    return code != MPI_SUCCESS ? code : NEXT(MPI_Comm_get_attr)(comm, key, value, found);
}

int MPI_Error_string(int problem, char *text, int *length)
{
    int code = refused("MPI_Error_string", CALLER);
    return code != MPI_SUCCESS ? code : NEXT(MPI_Error_string)(problem, text, length);
}

int MPI_Get_library_version(char *text, int *length)
{
    int code = refused("MPI_Get_library_version", CALLER);
    return code != MPI_SUCCESS ? code : NEXT(MPI_Get_library_version)(text, length);
}

int MPI_Type_contiguous(int count, MPI_Datatype type, MPI_Datatype *out)
{
    int code = refused("MPI_Type_contiguous", CALLER);
    return code != MPI_SUCCESS ? code : NEXT(MPI_Type_contiguous)(count, type, out);
}

int MPI_Type_commit(MPI_Datatype *type)
{
    int code = refused("MPI_Type_commit", CALLER);
    return code != MPI_SUCCESS ? code : NEXT(MPI_Type_commit)(type);
}

int MPI_Type_free(MPI_Datatype *type)
{
    int code = refused("MPI_Type_free", CALLER);
    return code != MPI_SUCCESS ? code : NEXT(MPI_Type_free)(type);
}

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    int code = refused("MPI_Isend", CALLER);
    return code != MPI_SUCCESS ? code : NEXT(MPI_Isend)(data, count, type, to, tag, comm, request);
}

int MPI_Irecv(void *data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    int code = refused("MPI_Irecv", CALLER);
    return code != MPI_SUCCESS ? code : NEXT(MPI_Irecv)(data, count, type, from, tag, comm, request);
}

int MPI_Iprobe(int from, int tag, MPI_Comm comm, int *flag, MPI_Status *status)
{
    int code = refused("MPI_Iprobe", CALLER);
    return code != MPI_SUCCESS ? code : NEXT(MPI_Iprobe)(from, tag, comm, flag, status);
}

int MPI_Testall(int count, MPI_Request requests[], int *flag, MPI_Status statuses[])
{
    int code = refused("MPI_Testall", CALLER);
    return code != MPI_SUCCESS ? code : NEXT(MPI_Testall)(count, requests, flag, statuses);
}

int MPI_Ibarrier(MPI_Comm comm, MPI_Request *request)
{
    int code = refused("MPI_Ibarrier", CALLER);
    return code != MPI_SUCCESS ? code : NEXT(MPI_Ibarrier)(comm, request);
}

int MPI_Ibcast(void *data, int count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *request)
{
    int code = refused("MPI_Ibcast", CALLER);
    return code != MPI_SUCCESS ? code : NEXT(MPI_Ibcast)(data, count, type, root, comm, request);
}

int MPI_Iallreduce(const void *mine, void *all, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   MPI_Request *request)
{
    int code = refused("MPI_Iallreduce", CALLER);
    return code != MPI_SUCCESS ? code : NEXT(MPI_Iallreduce)(mine, all, count, type, op, comm, request);
}

int MPI_Iallgather(const void *mine, int mine_count, MPI_Datatype mine_type, void *all, int count,
                   MPI_Datatype type, MPI_Comm comm, MPI_Request *request)
{
    int code = refused("MPI_Iallgather", CALLER);
    return code != MPI_SUCCESS
               ? code
               : NEXT(MPI_Iallgather)(mine, mine_count, mine_type, all, count, type, comm, request);
}

int MPI_Iallgatherv(const void *mine, int mine_count, MPI_Datatype mine_type, void *all, const int counts[],
                    const int places[], MPI_Datatype type, MPI_Comm comm, MPI_Request *request)
{
    int code = refused("MPI_Iallgatherv", CALLER);
    return code != MPI_SUCCESS
               ? code
               : NEXT(MPI_Iallgatherv)(mine, mine_count, mine_type, all, counts, places, type, comm, request);
}

#endif

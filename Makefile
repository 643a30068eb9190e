# Everyday verbs over CMake. `./setup VERB` installs what a verb needs first.
#
#   make            builds build/tercet
#   make demo       trains a small model and shows what it learnt
#   make test       runs all tests
#   make lint       checks layers, format and static analysis
#   make asan tsan  runs the tests under sanitizers (tsan: those of threaded parts, with clang)
#   make install    PREFIX=/usr/local, DESTDIR as usual
#   make clean
#
# CMAKE_ARGS=… goes to the configuration of the release build: CMAKE_ARGS=-DTERCET_MPI=OFF.

JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
CMAKE ?= cmake
CTEST ?= ctest

# The build below has its own job count: this make's flags and job server would only be in its way.
BUILD = env MAKEFLAGS=--no-print-directory $(CMAKE) --build

.PHONY: build demo test lint asan tsan install clean

build:
	$(CMAKE) --preset release $(CMAKE_ARGS)
	$(BUILD) --preset release --parallel $(JOBS)

demo: build
	examples/demo.sh

test: build
	$(CTEST) --preset release --parallel $(JOBS)

lint: build
	tools/lint

asan:
	$(CMAKE) --preset asan
	$(BUILD) --preset asan --parallel $(JOBS)
	$(CTEST) --preset asan --parallel $(JOBS)

# ThreadSanitizer of some versions cannot bear the address randomisation of newer kernels.
tsan:
	$(CMAKE) --preset tsan
	$(BUILD) --preset tsan --parallel $(JOBS)
	@if setarch -R true 2>/dev/null; then fixed='setarch -R'; else fixed=; fi; \
	$$fixed $(CTEST) --preset tsan --parallel $(JOBS)

install: build
	$(CMAKE) --install build --prefix $(PREFIX)

clean:
	rm -rf build build-debug build-asan build-tsan build-fuzz

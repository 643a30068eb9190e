# zsh -f zsh_complete.zsh DIRECTORY LINE: types LINE and a tab into an interactive zsh that finds `_tercet` in DIRECTORY
# and prints what then stands on the line, between "<" and ">".
emulate -L zsh
zmodload zsh/zpty || exit 77
directory=$1 line=$2
zpty shell zsh -f -i
read_until() {
    local part all=''
    integer tries=0
    while (( tries++ < 2000 )); do
        if zpty -r -t shell part; then
            all+=$part
            [[ $all != *"$1"* ]] || { REPLY=$all; return 0 }
        else
            sleep 0.01
        fi
    done
    print -r -u2 -- "nothing came that holds $1: $all"
    return 1
}
# What the keys do is on the line only; ^X prints it. Marks are written in two parts, so that their echo is no mark.
zpty -w shell "PS1= RPS1= fpath=(${(q)directory} \$fpath); cd ${(q)directory}; autoload -Uz compinit; compinit -D -u"
zpty -w shell 'show() { print -r -- "LINE""<$BUFFER>"; zle kill-buffer; }; zle -N show; bindkey "^X" show'
zpty -w shell 'print REA""DY'
read_until READY || exit 1
zpty -w -n shell "$line"$'\t\x18'
read_until 'LINE<' || exit 1
[[ $REPLY =~ 'LINE<([^>]*)>' ]] && print -r -- "<$match[1]>"
zpty -d shell

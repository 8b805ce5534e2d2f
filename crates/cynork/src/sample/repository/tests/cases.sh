# Shared by the tests; source it. Counts what does not hold.
bad=0

# case_ WANTED ARGUMENTS: what the program prints for these arguments.
case_() {
    wanted=$1
    shift
    got=$(./slug "$@" 2>&1) || got="$got (failed)"
    if [ "$got" = "$wanted" ]; then
        echo "ok      slug $* -> $got"
    else
        echo "NOT OK  slug $* -> $got, but wanted: $wanted"
        bad=$((bad + 1))
    fi
}

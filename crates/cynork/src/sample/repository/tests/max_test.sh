# What `--max LENGTH` is to do: no name is longer, and it is cut between words.
. ./tests/cases.sh
case_ hello-wide-world --max 99 'Hello, wide world!'
case_ hello-wide --max 10 'Hello, wide world!'
case_ hello-wide --max 11 'Hello, wide world!'
case_ hello --max 8 'Hello, wide world!'
case_ hel --max 3 'Hello, wide world!'
case_ untitled --max 9 '?!'
exit "$bad"

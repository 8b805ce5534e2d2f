# What a name is like.
. ./tests/cases.sh
case_ hello-world 'Hello, world!'
case_ a-b-c ' a  b --  c '
case_ no-5 'No. 5'
case_ untitled '?!'
case_ untitled
exit "$bad"

#!/bin/sh
# Holds when the greeting names whoever is greeted.
test "$(sh ./greet.sh Ada)" = "hello Ada"

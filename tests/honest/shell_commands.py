"""Uses what shell commands print: into a name, with variables, in cells of bash and of another Python."""
# %% before="affine"
number = 3
lines = !echo {number} && echo $number
status = !exit 7
!exit 7
assert _exit_code == 7
# %% before="affine"
%%bash --out said --err complained
echo 1
echo no >&2
# %% before="affine"
%%script python
print("another process")
# %% before="affine"
%%bash
mkdir -p made && echo "5" > made/five.txt
# %% answer="affine"
files = !ls made
assert files == ["five.txt"] and complained.strip() == "no"


def affine(x):
    return int(lines[0]) * x + int(said)
# %% answer="tally"
where = %pwd
%cd -q made
five = int(open("five.txt").read())
%cd -q ..
back = %pwd
assert back == where
python = !python -c "print(6 * 7)"


def tally(counts, start):
    answer = !echo {start}
    return int(answer[0]) + sum(counts.values()) + five - 5 + int(python.n) - 42

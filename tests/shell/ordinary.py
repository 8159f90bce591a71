"""Read-only commands as developers and agents type them, one a line, in English and Chinese. Written before the gate
was tried on them; those that the gate asks for stay in the list, so that the share stays honest.
"""

ORDINARY = [
    line
    for line in r"""
ls
ls -la
ls -l src
ls -lah
ls -R src | head -50
ls -1 tests
ls -lt | head
ls -lS src/ | head -20
ls *.md
ls -d */
ls src tests docs
ls -la src/ 2>/dev/null
ls 文档
ls -la "文档/设计 说明"
ls -la && git status
pwd
pwd && ls -la
cat README.md
cat src/main.py
cat package.json
cat pyproject.toml
cat src/app.py src/util.py
cat -n src/main.py
cat -A src/main.py | head
cat .gitignore
cat Makefile
cat Dockerfile
cat requirements.txt
cat 说明.md
cat "项目 说明.txt"
cat docs/*.md
cat *.json
cat src/a.py | head -100
cat src/main.py | grep -n def
cat package.json | jq .scripts
cat log.txt | sort | uniq -c | sort -rn | head
cat .env.example
head README.md
head -20 src/main.py
head -n 50 src/main.py
head -c 200 data.bin
head -5 data/*.csv
tail log.txt
tail -20 log.txt
tail -n 100 logs/app.log
tail -n +10 data.csv
tail -f logs/app.log
tail -n 50 logs/app.log | grep ERROR
grep asphalt
grep -rn "TODO" src
grep -rn TODO .
grep -r "import os" --include="*.py" .
grep -rn "def main" src/ tests/
grep -i error logs/app.log
grep -c "" data.csv
grep -v "^#" config.ini
grep -E "foo|bar" src/main.py
grep -rl "deprecated" src
grep -rnw "config" src
grep -A 3 -B 2 "class Foo" src/main.py
grep -n "错误" logs/app.log
grep -rn "用户登录" src --include=*.py
grep -rn "/api/v1/users" src
grep -o "[0-9]*" data.txt
grep -rn "foo" . --exclude-dir=node_modules --exclude-dir=.git
grep -P "\d{4}-\d{2}" log.txt
grep -rn 'useState(' src/components
grep "^import" src/main.py | sort -u
grep -rn "\.env" src
grep -e foo -e bar README.md
grep -q needle haystack.txt && echo found
grep -rn "console.log" src | wc -l
grep -Rn "password" config/
egrep "a|b" file.txt
fgrep "literal.text" file.txt
rg TODO
rg -n "async def" src
rg --files
rg --files | head -20
rg -l "import numpy"
rg -i "error" logs
rg -t py "class \w+"
rg -g '*.ts' "interface User"
rg "foo" -A 5 -B 5 src/
rg -c "test" tests/
rg --no-heading -n "def " src
rg -uu "secret_key" .
rg "配置" 文档
rg -F "foo(bar" src
rg --type-list
rg -w "user" --stats
find . -name "*.py"
find . -name '*.py' | head
find . -type f | wc -l
find . -type f -name "*.md" -not -path "*/node_modules/*"
find src -name "test_*"
find . -maxdepth 2 -type d
find . -name "*.log" -mtime -7
find . -size +10M
find . -iname "*readme*"
find . -empty
find . -newer README.md
find . -type f -name "*.py" | xargs wc -l
find . -name "*.py" -print0 | xargs -0 grep -n "TODO"
find . -name *.txt
find . ! -name "*.pyc" -type f
find . \( -name "*.js" -o -name "*.ts" \) -type f
find . -path ./node_modules -prune -o -name "*.js" -print
find . -name "*.py" -printf "%s %p\n" | sort -n
find 资料 -name "*.docx"
find . -type f -exec wc -l {} +
find . -name "*.py" | sort | head -40
find . -type l -ls
fd main
fd -e py
fd -t f config src
git status
git status -s
git status --short --branch
git status --porcelain
git log
git log --oneline
git log --oneline -10
git log -5
git log -n 3 --stat
git log --oneline --graph --all
git log --oneline --graph --decorate --all | head -30
git log -p src/main.py
git log -p -1
git log --author="Ann" --since="2 weeks ago"
git log --grep="修复"
git log --format="%h %an %s" -20
git log --pretty=format:"%h - %s" --since=yesterday
git log main..feature
git log --follow -- src/main.py
git log -S "old_function" --oneline
git log --name-only -3
git log origin/main..HEAD --oneline
git diff
git diff --stat
git diff HEAD
git diff HEAD~1
git diff --cached
git diff --staged
git diff main...feature
git diff main -- src/
git diff --name-only HEAD~3
git diff --name-status main
git diff -w
git diff src/main.py
git diff HEAD~2 HEAD --stat
git diff | head -100
git --no-pager diff
git --no-pager log --oneline -5
git show
git show HEAD
git show HEAD~2 --stat
git show abc1234
git show HEAD:src/main.py
git show --name-only HEAD
git show stash@{0}
git branch
git branch -a
git branch -vv
git branch --show-current
git branch -r
git branch --list "feature/*"
git branch --merged
git branch --contains abc123
git tag
git tag -l
git tag -l "v1.*"
git tag --sort=-creatordate | head -5
git remote -v
git remote
git remote get-url origin
git stash list
git stash show -p
git blame src/main.py
git blame -L 10,20 src/main.py
git ls-files
git ls-files | wc -l
git ls-files '*.py'
git ls-files --others --exclude-standard
git ls-tree -r HEAD --name-only
git rev-parse HEAD
git rev-parse --abbrev-ref HEAD
git rev-parse --show-toplevel
git rev-list --count HEAD
git describe --tags
git describe --tags --always
git shortlog -sn
git shortlog -sne HEAD
git reflog
git reflog -10
git config --get user.name
git config user.email
git config --list
git merge-base main feature
git cat-file -p HEAD
git grep -n "TODO"
git grep "函数" -- "*.py"
git worktree list
git check-ignore -v build/out.txt
git cherry -v main
git count-objects -vH
git for-each-ref --sort=-committerdate refs/heads
git --version
git -C src status
git fetch --dry-run
wc -l src/*.py
wc -l README.md
wc -c data.bin
wc -l < data.csv
sort names.txt
sort -n numbers.txt
sort -u names.txt | head
sort -t, -k2 data.csv
sort -rn -k1,1 sizes.txt
sort data.txt | uniq -d
uniq -c sorted.txt
cut -d, -f1 data.csv
cut -d: -f1,3 users.txt | sort
cut -c1-80 log.txt
cut -d' ' -f1 access.log | sort | uniq -c | sort -nr | head -10
tr a-z A-Z < name.txt
cat x.txt | tr -d '\r'
echo "hello" | tr 'a-z' 'A-Z'
diff a.txt b.txt
diff -u old.py new.py
diff -r src1 src2
diff -rq dir1 dir2
diff --brief a b
diff -y a.txt b.txt
cmp a.bin b.bin
comm -12 a.txt b.txt
stat README.md
stat -c "%s %n" *.py
file data.bin
file -b image.png
file src/*
du -sh .
du -sh *
du -h --max-depth=1
du -sh src tests | sort -h
du -a . | sort -n -r | head -n 10
df -h
df -h .
echo hello
echo "done"
echo -n "x"
echo "你好，世界"
echo '--- files ---' && ls && echo '--- git ---' && git status -s
printf "%s\n" hello
printf 'a\tb\n'
date
date +%Y-%m-%d
date "+%Y-%m-%d %H:%M:%S"
date -u +%FT%TZ
date -d "yesterday" +%F
which python3
which node npm git
which -a python
whereis gcc
type ls
command -v docker
env
env | grep PATH
env | sort
printenv PATH
ps aux
ps aux | grep python
ps -ef
ps -ef | grep node | grep -v grep
ps -p 1234
ps aux --sort=-%mem | head
pgrep -fl python
uname -a
uname -r
id
whoami
hostname
uptime
nproc
free -h
lscpu
lscpu | grep "Model name"
basename src/main.py
dirname src/main.py
realpath README.md
readlink -f bin/tool
tree
tree -L 2
tree -I "node_modules|.git"
tree -a -L 1 src
tree -d
jq . package.json
jq '.dependencies' package.json
jq -r '.name' package.json
jq -r '.scripts | keys[]' package.json
jq '.items[] | select(.id > 3)' data.json
jq length data.json
cat data.json | jq '.[0]'
python --version
python3 --version
python3 -V
node --version
node -v
npm -v
npm --version
pip --version
pip list
pip list | grep torch
pip show requests
pip freeze
pip list --format=json
npm ls
npm ls --depth=0
npm list -g --depth=0
cargo --version
rustc --version
go version
java -version
gcc --version
make --version
docker --version
docker ps
docker ps -a
docker images
sed -n '1,20p' src/main.py
sed -n 10,30p src/main.py
sed -n '100,$p' log.txt
sed -n '/def main/,/return/p' src/main.py
sed -n '5p' data.csv
sed 's/foo/bar/g' file.txt
sed 's/^[ \t]*//' file.txt
sed -n '$p' log.txt
sed -e 's/a/b/' -e 's/c/d/' x.txt
nl -ba src/main.py | sed -n '40,60p'
cat src/main.py | sed -n '1,50p'
awk '{print $1}' data.txt
awk -F, '{print $2}' data.csv
awk -F: '{ print $1, $3 }' users.txt
awk 'NR==1' data.csv
awk 'NR>=10 && NR<=20' src/main.py
awk '{sum += $1} END {print sum}' numbers.txt
awk '/ERROR/ {print $0}' log.txt
awk 'length > 80' src/main.py
awk 'NR>1 {print $2}' data.csv | sort | uniq -c
ls -l | awk '{print $5, $9}'
cd src && ls
cd src && git status
cd src && grep -rn "TODO" . | head
cd 文档 && ls -la
test -f README.md && echo yes
[ -d src ] && echo exists
test -d node_modules || echo missing
[ -f package.json ] && cat package.json
md5sum data.bin
sha256sum dist/*.whl
base64 data.bin | head -2
xxd data.bin | head
xxd -l 64 data.bin
hexdump -C data.bin | head -20
od -c file.txt | head
strings data.bin | head -50
iconv -f GBK -t UTF-8 旧文档.txt
iconv -f gb18030 -t utf-8 data.txt | head
tar -tf archive.tar
tar tzf archive.tar.gz | head
unzip -l archive.zip
zcat log.gz | head
column -t -s, data.csv | head
paste a.txt b.txt
nl README.md
tac log.txt | head
rev words.txt
fold -w 80 README.md
seq 1 10
expr 1 + 2
true
sleep 1
ls -la; pwd; whoami
git status && git diff --stat
ls | wc -l
ls -la | grep "\.py$"
ls nonexistent 2>&1 | head -1
git log --oneline | wc -l
cat a.txt b.txt | sort -u | wc -l
ps aux | awk '{print $2}' | head
history | tail -20
man ls
less README.md
cat ~/.bashrc
ls $HOME
ls -la /tmp
cat /etc/os-release
cat /proc/cpuinfo | grep "model name" | head -1
ss -tlnp
netstat -tlnp
ip addr
lsof -i :8080
top -bn1 | head -20
wc -w 论文.md
grep -c "章" 小说.txt
head -n 20 "会议记录 2024.md"
diff 旧.txt 新.txt
sort 名单.txt | uniq -c
find . -name "*测试*"
git log --author=王伟 --oneline
git show HEAD:文档/说明.md | head -40
rg "登录失败" logs -n
echo "当前目录：" && pwd
jq '{name, version}' package.json
jq -r '.[] | {id, name}' users.json
jq '.users[] | select(.email == "ann@example.com")' users.json
jq '.[] | select(.status == "active") | .id' data.json
git log -S'handle_request' --oneline
git log -G'TODO|FIXME' -p -- src
git log -Sretry --since=2024-01-01
git config -l
top -b -n 1 | head -15
jq -c '.items[] | {id, title}' feed.json | head
jq '.dependencies | has("react")' package.json
""".splitlines()
    if line.strip()
]

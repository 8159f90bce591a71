"""Which programs only read, and with which options. A table; nothing is decided here.

An option that is not listed asks. Programs with `free=True` have no option that writes, runs or never ends, on Linux,
BSD and macOS; before a program goes into the table, read its manual for -o, --output, -i, --exec, --pager, --config.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Program:
    """How a program may be called so that it only reads.

    `flags`: letters without a value. `texts`, `paths`: letters with one, which is words or a file. `long`: names of
    long options, `name=` where the value may be the next word, `name=<` where it is a file. `words`: how many operands
    are words and not files (-1: all). `most`: how many operands there may be at all. `free`: any other short option as
    well, and where all operands are words, any long one. A long option counts only when it is written in full.
    """

    flags: str = ""
    texts: str = ""
    paths: str = ""
    long: str = ""
    words: int = 0
    most: int = 1_000_000
    free: bool = False

    @property
    def long_options(self) -> dict[str, str]:
        """Each long option and how it takes a value: empty, `=` or `=<`."""
        return {name.rstrip("=<"): name[len(name.rstrip("=<")) :] for name in ("help version " + self.long).split()}


WORDS_ONLY = Program(free=True, words=-1)
BARE = Program(most=0)

GREP = Program(
    "EFGPHILTUVZabchilnoqrRsvwxyz", "eABCDdm", "f", words=1, free=True,
    long="regexp= max-count= after-context= before-context= context= include= exclude= exclude-dir= label= color "
    "colour binary-files= file=< exclude-from=< line-number recursive ignore-case no-ignore-case extended-regexp "
    "fixed-strings basic-regexp perl-regexp word-regexp line-regexp invert-match count files-with-matches "
    "files-without-match only-matching quiet silent no-messages byte-offset with-filename no-filename initial-tab "
    "null null-data text directories= devices= line-buffered",
)  # fmt: skip
RG = Program(
    "FHILNPSUVabchilnoqpsuvwx0.", "eABCEMTgjmrtd", "f", words=1,
    long="regexp= after-context= before-context= context= glob= iglob= type= type-not= type-list max-count= max-depth= "
    "max-columns= replace= sort= sortr= color= colors= encoding= files files-with-matches files-without-match hidden "
    "no-ignore no-ignore-vcs no-heading heading line-number no-line-number ignore-case case-sensitive smart-case "
    "fixed-strings word-regexp line-regexp count count-matches only-matching invert-match multiline "
    "multiline-dotall json stats vimgrep column trim text pcre2 pretty quiet no-messages with-filename no-filename "
    "passthru null debug no-config file=<",
)  # fmt: skip
FD = Program(
    "HIaglpis0Fu1q", "edtEcSjd", words=1,
    long="hidden no-ignore extension= type= exclude= max-depth= min-depth= absolute-path glob ignore-case "
    "case-sensitive full-path color= changed-within= changed-before= size= list-details max-results= print0",
)  # fmt: skip

LS = (
    "all almost-all author escape block-size= ignore-backups color classify file-type format= full-time no-group "
    "group-directories-first human-readable si hide= hyperlink indicator-style= inode ignore= kibibytes literal "
    "numeric-uid-gid hide-control-chars show-control-chars quote-name quoting-style= reverse recursive size sort= "
    "time= time-style= tabsize= width= context zero directory"
)
SUMS = Program("btz", "l", long="binary text zero tag length=")
"""Without -c: what they check is named in a file."""

PROGRAMS: dict[str, Program] = {
    # files and folders
    **dict.fromkeys(("ls", "dir", "vdir"), Program(free=True, long=LS)),
    "stat": Program(free=True, long="format= printf= file-system terse dereference cached="),
    "du": Program(
        "abchklmsSxgAPr0",
        "BdtI",
        "X",
        free=True,
        long="all apparent-size block-size= bytes total max-depth= human-readable inodes si "
        "count-links separate-dirs summarize threshold= time time-style= exclude= one-file-system null",
    ),
    "df": Program(
        free=True,
        long="all block-size= human-readable si inodes local no-sync portability type= print-type "
        "exclude-type= output total",
    ),
    "basename": Program(free=True, long="multiple suffix= zero"),
    "dirname": Program(free=True, long="zero"),
    "realpath": Program(
        free=True,
        long="canonicalize-existing canonicalize-missing logical physical quiet strip zero "
        "no-symlinks relative-to=< relative-base=<",
    ),
    "readlink": Program(
        free=True, long="canonicalize canonicalize-existing canonicalize-missing no-newline quiet silent verbose zero"
    ),
    "tree": Program("adfipsughDFNACJXQtrvUc", "LIP", long="dirsfirst noreport filelimit= gitignore prune du si sort="),
    "file": Program("bihLkrN0E", long="brief mime mime-type mime-encoding dereference"),
    "fd": FD,
    "fdfind": FD,
    "pwd": Program("LP", most=0),
    # contents
    "cat": Program(
        free=True, long="show-all number-nonblank show-ends number squeeze-blank show-tabs show-nonprinting"
    ),
    "head": Program(free=True, long="bytes= lines= quiet silent verbose zero-terminated"),
    "wc": Program(free=True, long="bytes chars lines max-line-length words total="),
    "cut": Program(
        free=True,
        long="bytes= characters= delimiter= fields= complement only-delimited output-delimiter= zero-terminated",
    ),
    "nl": Program(
        free=True,
        long="body-numbering= header-numbering= footer-numbering= line-increment= number-format= "
        "number-separator= number-width= starting-line-number=",
    ),
    "tac": Program(free=True, long="before regex separator="),
    "fold": Program(free=True, long="bytes spaces width="),
    "fmt": Program(free=True, long="crown-margin prefix= split-only tagged-paragraph uniform-spacing width= goal="),
    **dict.fromkeys(("expand", "unexpand"), Program(free=True, long="initial tabs= all first-only")),
    "paste": Program(free=True, long="delimiters= serial zero-terminated"),
    "comm": Program(free=True, long="check-order nocheck-order output-delimiter= total zero-terminated"),
    "join": Program(free=True, long="ignore-case check-order nocheck-order header zero-terminated"),
    "cmp": Program(free=True, long="print-bytes ignore-initial= verbose bytes= quiet silent"),
    "od": Program(
        free=True, long="address-radix= skip-bytes= read-bytes= strings format= output-duplicates width= endian="
    ),
    **dict.fromkeys(("hexdump", "hd"), Program("bcCdovx", "nse", long="canonical no-squeezing length= skip=")),
    "column": Program(free=True, long="table separator= output-separator= table-columns= json table-right="),
    **dict.fromkeys(("md5sum", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum", "b2sum"), SUMS),
    "cksum": Program("", "a"),
    "sum": Program("rs"),
    "md5": Program("qr"),
    **dict.fromkeys(("rev", "tsort"), Program()),
    "tail": Program("qvz0123456789", "nc", long="lines= bytes= quiet silent verbose zero-terminated"),
    "tr": Program(free=True, words=-1),
    "diff": Program(
        "abcdeiqrstuwyBENTZp0123456789",
        "UCWIFxLD",
        long="brief unified context color recursive ignore-all-space ignore-space-change ignore-case new-file "
        "side-by-side exclude= ignore-blank-lines suppress-common-lines report-identical-files text width= label= "
        "strip-trailing-cr ignore-matching-lines= minimal normal no-dereference",
    ),
    "xxd": Program("beipu", "clgsno", most=1),
    "strings": Program("af", "nte", long="bytes= radix= encoding= all"),
    "iconv": Program("cls", "ft", long="from-code= to-code= list silent"),
    "base64": Program("dDi", "w", long="decode wrap= ignore-garbage", most=1),
    "base32": Program("di", "w", long="decode wrap= ignore-garbage", most=1),
    "zcat": Program(most=9),
    # searching, sorting, picking
    **dict.fromkeys(("grep", "egrep", "fgrep"), GREP),
    "rg": RG,
    "sort": Program(
        "bdfghinrsuVcCmzMR",
        "ktS",
        long="reverse numeric-sort unique human-numeric-sort version-sort key= "
        "field-separator= general-numeric-sort ignore-case stable check month-sort zero-terminated random-sort",
    ),
    "uniq": Program("cduDiz", "fsw", long="count repeated unique ignore-case skip-fields= skip-chars=", most=1),
    "shuf": Program("ez", "ni", long="head-count= echo input-range="),
    "jq": Program(
        "rcsnSeaMCjR",
        "",
        long="arg= argjson= raw-output compact-output slurp null-input sort-keys exit-status "
        "tab indent= monochrome-output color-output raw-input join-output ascii-output stream args jsonargs",
        words=1,
    ),
    # words
    "echo": WORDS_ONLY,
    "expr": WORDS_ONLY,
    "seq": WORDS_ONLY,
    "factor": WORDS_ONLY,
    "true": WORDS_ONLY,
    "false": WORDS_ONLY,
    ":": WORDS_ONLY,
    "sleep": Program(words=-1, most=1),
    "cal": WORDS_ONLY,
    # the machine
    **dict.fromkeys(("uname", "whoami", "id", "groups", "uptime", "nproc", "tty", "logname"), WORDS_ONLY),
    **dict.fromkeys(("w", "printenv", "getconf", "locale"), WORDS_ONLY),
    **dict.fromkeys(("who", "users"), Program("abdHlmpqrstTu", most=0)),
    "env": BARE,
    "arch": BARE,
    "hostname": Program("fsiId", most=0),
    "date": Program("uRjI", "d", "r", long="date= utc universal iso-8601 rfc-3339= rfc-email reference=<", words=-1),
    "free": Program("bkmgwtlh", most=0, long="human mega giga total wide"),
    "lscpu": BARE,
    "lsblk": Program("fampJ", "o", most=0),
    "ps": Program("eAafFlw", "opuCt", long="sort= no-headers forest", words=-1),
    "pgrep": Program("aflxnoci", "ud", words=-1),
    "ss": Program("tulnpa46sx", most=0),
    "netstat": Program("tulnpaer", most=0),
    "nvidia-smi": BARE,
    "ip": Program("46", long="brief br color", words=-1),
    # where programs are
    "which": Program("a", words=-1),
    "whereis": Program("bms", words=-1),
    "type": Program("atpPf", words=-1),
    "command": Program("vV", words=-1),
    # packages
    "pip": Program("vqf", long="format= user local not-required verbose files version", words=-1),
    "pip3": Program("vqf", long="format= user local not-required verbose files version", words=-1),
    "npm": Program("gvl", long="depth= global json all long parseable version omit= prod", words=-1),
    "dpkg": Program("lLsS", long="list listfiles status search print-architecture", words=-1),
    "apt": Program("", long="installed upgradable all-versions", words=-1),
    "docker": Program("aqs", "n", long="all quiet no-trunc size latest", words=-1),
    "openssl": Program("a", most=1, words=-1),
    "unzip": Program("lvq"),
}

SUBCOMMANDS: dict[str, frozenset[str]] = {
    "pip": frozenset({"list", "show", "freeze", "check"}),
    "pip3": frozenset({"list", "show", "freeze", "check"}),
    "npm": frozenset({"ls", "list"}),
    "apt": frozenset({"list", "show", "policy"}),
    "docker": frozenset({"ps", "images", "version", "info"}),
    "openssl": frozenset({"version"}),
    "ip": frozenset({"a", "addr", "address", "r", "route", "l", "link"}),
}
"""Programs of which only some commands read; the first operand must be one of them, unless it is just --version."""

ASKED_VERSION = frozenset(
    [
        "python",
        "python3",
        "python2",
        "node",
        "npm",
        "pip",
        "pip3",
        "cargo",
        "rustc",
        "rustup",
        "gcc",
        "g++",
        "cc",
        "clang",
        "clang++",
        "make",
        "cmake",
        "ninja",
        "java",
        "javac",
        "ruby",
        "gem",
        "php",
        "perl",
        "bash",
        "zsh",
        "docker",
        "curl",
        "wget",
        "tar",
        "openssl",
        "ssh",
        "psql",
        "sqlite3",
        "redis-cli",
        "uv",
        "ruff",
        "mypy",
        "black",
        "deno",
        "bun",
        "gh",
        "lua",
        "julia",
        "ffmpeg",
        "pandoc",
        "vim",
        "nvim",
        "conda",
        "helm",
        "git",
        "rg",
        "jq",
        "fd",
        "R",
        "Rscript",
        "ghc",
        "nginx",
        "mysql",
        "rsync",
        "gpg",
        "zip",
        "xz",
        "zstd",
    ]
)
"""Programs that do nothing but answer when they are called with --version and nothing else."""
SHORT_VERSION: dict[str, frozenset[str]] = {
    "-V": frozenset(["python", "python3", "pip", "pip3", "ssh", "curl", "wget", "cargo", "rustc", "uv", "psql"]),
    "-v": frozenset(["node", "npm", "perl", "ruby", "gcc", "make", "deno", "bun", "php", "nginx", "lua"]),
    "-version": frozenset({"java", "javac", "ffmpeg"}),
}
"""Other ways to ask that, and who understands them."""

STEERED: dict[str, tuple[str, ...]] = {
    "cargo": ("rust-toolchain", "rust-toolchain.toml"),
    "rustc": ("rust-toolchain", "rust-toolchain.toml"),
    "rustup": ("rust-toolchain", "rust-toolchain.toml"),
    "npm": (".npmrc",),
    "bun": ("bunfig.toml",),
}
"""Files in the workspace that can make a program run something else, even for --version."""

FIND_TESTS = frozenset(
    [
        "-amin",
        "-anewer",
        "-atime",
        "-cmin",
        "-cnewer",
        "-ctime",
        "-empty",
        "-false",
        "-fstype",
        "-gid",
        "-group",
        "-iname",
        "-inum",
        "-ipath",
        "-iregex",
        "-iwholename",
        "-links",
        "-mmin",
        "-mtime",
        "-name",
        "-newer",
        "-nogroup",
        "-nouser",
        "-path",
        "-perm",
        "-readable",
        "-regex",
        "-samefile",
        "-size",
        "-true",
        "-type",
        "-uid",
        "-used",
        "-user",
        "-wholename",
        "-writable",
        "-executable",
        "-xtype",
        "-maxdepth",
        "-mindepth",
        "-depth",
        "-mount",
        "-xdev",
        "-noleaf",
        "-regextype",
        "-daystart",
        "-print",
        "-print0",
        "-printf",
        "-ls",
        "-prune",
        "-quit",
        "-a",
        "-and",
        "-o",
        "-or",
        "-not",
        "!",
        "(",
        ")",
        ",",
        "-H",
        "-P",
    ]
)
FIND_TEXTS = frozenset(
    ["-name", "-iname", "-path", "-ipath", "-regex", "-iregex", "-wholename", "-iwholename", "-printf", "-regextype"]
)

TEST_WORDS = frozenset(["=", "==", "!=", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef", "!", "]"])
PS_WORDS = ("aux", "auxf", "auxw", "auxww", "auxwww", "ax", "axu", "axf", "x", "ux", "a", "u", "f", "axo", "auxo")
PS_COLUMNS = frozenset(
    [
        "pid",
        "ppid",
        "pgid",
        "sid",
        "user",
        "uid",
        "gid",
        "group",
        "comm",
        "ucmd",
        "args",
        "cmd",
        "command",
        "etime",
        "etimes",
        "time",
        "stat",
        "state",
        "s",
        "%cpu",
        "%mem",
        "pcpu",
        "pmem",
        "rss",
        "vsz",
        "vsize",
        "sz",
        "tty",
        "tname",
        "start",
        "lstart",
        "start_time",
        "stime",
        "ni",
        "nice",
        "pri",
        "nlwp",
        "thcount",
        "wchan",
        "c",
        "psr",
        "rssize",
        "size",
        "cpu",
        "mem",
    ]
)

SECRET_NAMES = (
    ".env", ".env.*", "*.env", ".envrc", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "id_rsa*",
    "id_ed25519*", "id_ecdsa*", "id_dsa*", ".netrc", "_netrc", ".npmrc", ".pypirc", ".pgpass", ".my.cnf",
    ".git-credentials", ".htpasswd", "credentials", "credentials.*", "secrets", "secrets.*", "secret.*", ".ssh", ".aws",
    ".gnupg", ".kube", ".docker", ".azure", ".gcloud", ".vault-token", "shadow", "gshadow", "sudoers", "*.ovpn",
    "service-account*.json", "token", "token.json", "*.token", "*_history", ".dockercfg", "authorized_keys",
)  # fmt: skip
"""Names of files that hold secrets, as patterns."""
HARMLESS_NAMES = ("*.example", "*.sample", "*.template", "*.dist", "*.pub", "id_*.pub", "token.py", "secrets.py")
ORDINARY_NAMES = ("README.md", "main.py", "index.js", "a", "src", "notes.txt", "data.json", "test_a.py")
"""A glob that takes one of these is about everything, not about secrets."""

WHY: dict[str, str] = {
    "rm": "removes files", "rmdir": "removes folders", "mv": "moves files", "cp": "writes files", "ln": "makes links",
    "mkdir": "makes folders", "touch": "writes files", "tee": "writes what it reads to a file", "dd": "writes raw data",
    "truncate": "cuts files", "shred": "destroys files", "split": "writes files", "install": "writes files",
    "chmod": "changes who may use a file", "chown": "changes who owns a file", "chgrp": "changes who owns a file",
    "kill": "ends processes", "pkill": "ends processes", "killall": "ends processes", "xkill": "ends processes",
    "curl": "talks to the network", "wget": "talks to the network", "ssh": "runs commands elsewhere",
    "scp": "copies to or from elsewhere", "rsync": "copies files", "nc": "talks to the network",
    "ftp": "talks to the network",
    "sudo": "runs as another user", "su": "runs as another user", "doas": "runs as another user",
    "bash": "runs a script", "sh": "runs a script", "zsh": "runs a script", "dash": "runs a script",
    "eval": "runs its words",
    "exec": "replaces the shell", "source": "runs a script", ".": "runs a script", "python": "runs a program",
    "python3": "runs a program", "node": "runs a program", "perl": "runs a program", "ruby": "runs a program",
    "php": "runs a program", "make": "runs what the Makefile says", "npx": "runs a package", "uvx": "runs a package",
    "tar": "can write files and run programs", "unzip": "can write files", "vim": "is an editor", "vi": "is an editor",
    "nano": "is an editor", "emacs": "is an editor", "less": "can run programs", "more": "can run programs",
    "man": "can run a pager", "alias": "changes what a name means", "export": "changes the environment",
    "unset": "changes the environment", "set": "changes the shell", "shopt": "changes the shell", "trap": "runs later",
    "crontab": "changes what runs later", "at": "runs later", "docker": "can change containers",
    "xargs": "runs a program",
    "env": "runs a program in another environment", "nohup": "runs a program", "time": "runs a program",
    "timeout": "runs a program", "watch": "runs a program again and again", "parallel": "runs programs",
    "pytest": "runs the tests, which may do anything", "cargo": "can build and run", "go": "can build and run",
}  # fmt: skip
"""What a program that is not in the table does, for the one who is asked."""

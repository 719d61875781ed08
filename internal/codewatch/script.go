package codewatch

import (
	"path"
	"slices"
	"strings"
)

// Given says what an interpreter was told to run. It is read from names and
// arguments, which prove nothing: it only says where to look. What was run is
// what the kernel says the process opened.
type Given struct {
	Script int  // index of the argument that names a script; 0: none
	Text   int  // index of the argument that is the text of one; 0: none
	Skip   int  // bytes of that argument that are not of the text
	Input  bool // neither: it reads a script from its standard input, if it runs one at all
}

// dialect is how an interpreter's arguments are read.
type dialect struct {
	text   string // letters of the options whose argument is program text
	values string // of those that take another argument
	module string // of those after which there is neither script nor text
	long   string // long options for text, between blanks
	others string // long options that take another argument
	shell  bool   // of -c the text is the first operand, whatever comes between
}

var (
	shell  = dialect{text: "c", values: "oO", others: "--rcfile --init-file", shell: true}
	python = dialect{text: "c", values: "WX", module: "m", others: "--check-hash-based-pycs"}
	node   = dialect{text: "ep", values: "rC", long: "--eval --print", others: "--require --import --loader --conditions"}
	plain  = dialect{}
)

var dialects = map[string]dialect{
	"sh": shell, "dash": shell, "ash": shell, "bash": shell, "zsh": shell, "ksh": shell, "mksh": shell, "fish": shell,
	"python": python, "pypy": python, "node": node, "nodejs": node, "bun": node,
	"perl": {text: "eE", values: "IMm"}, "ruby": {text: "e", values: "ICr"}, "php": {text: "rBE", values: "dcz"},
	"lua": {text: "e", values: "l"}, "luajit": {text: "e", values: "l"}, "Rscript": {text: "e"}, "guile": {text: "c", values: "Ll"},
	"tclsh": plain, "deno": plain, "pwsh": plain,
}

// dialectOf knows interpreters by name, with or without a version (python3.11, perl5.36.0).
func dialectOf(name string) (dialect, bool) {
	if d, ok := dialects[name]; ok {
		return d, true
	}
	d, ok := dialects[strings.TrimRight(name, "0123456789.-")]
	return d, ok
}

// Interpreted reads the arguments of a program and reports whether it is an
// interpreter at all. exe is the path that the kernel gives it.
func Interpreted(exe string, argv [][]byte) (Given, bool) {
	d, ok := dialectOf(path.Base(exe))
	if !ok {
		return Given{}, false
	}
	text := false // an option of a shell said that the first operand is text
	for i := 1; i < len(argv); i++ {
		arg := string(argv[i])
		if arg == "--" && i+1 < len(argv) {
			return operand(i+1, text), true
		}
		if arg == "" || arg == "-" || arg == "--" {
			break
		}
		if arg[0] != '-' && (arg[0] != '+' || !d.shell) {
			return operand(i, text), true
		}
		kind, used := d.option(arg)
		switch {
		case kind == isModule:
			return Given{}, true
		case kind == isText && d.shell:
			text = true
		case kind == isText && used < len(arg): // -eTEXT, --eval=TEXT
			return Given{Text: i, Skip: used}, true
		case kind == isText && i+1 < len(argv):
			return Given{Text: i + 1}, true
		case kind == isValue && used == len(arg):
			i++
		}
	}
	return Given{Input: !text}, true
}

func operand(i int, text bool) Given {
	if text {
		return Given{Text: i}
	}
	return Given{Script: i}
}

// optionKind is what an option is for.
type optionKind int

const (
	isFlag optionKind = iota
	isText
	isValue
	isModule
)

// option says what an option is for, and how many bytes of it are not its own argument.
func (d *dialect) option(arg string) (optionKind, int) {
	if strings.HasPrefix(arg, "--") {
		name, _, given := strings.Cut(arg, "=")
		used := len(name)
		if given {
			used++
		}
		switch {
		case slices.Contains(strings.Fields(d.long), name):
			return isText, used
		case slices.Contains(strings.Fields(d.others), name):
			return isValue, used
		}
		return isFlag, len(arg)
	}
	for i := 1; i < len(arg); i++ {
		switch {
		case strings.IndexByte(d.text, arg[i]) >= 0:
			return isText, i + 1
		case strings.IndexByte(d.module, arg[i]) >= 0:
			return isModule, i + 1
		case strings.IndexByte(d.values, arg[i]) >= 0:
			if d.shell { // -eo pipefail: the rest are flags, the value comes next
				return d.group(arg)
			}
			return isValue, i + 1
		}
	}
	return isFlag, len(arg)
}

// group reads options of a shell that stand together, of which one takes the next argument.
func (d *dialect) group(arg string) (optionKind, int) {
	if strings.ContainsAny(arg[1:], d.text) {
		return isText, len(arg)
	}
	return isValue, len(arg)
}

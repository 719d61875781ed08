// Command apidoc wants a comment of every exported name of the packages in the
// directories that it is given: the package, constants and variables or their
// group, functions, types, methods, fields. What a comment should say (shapes,
// units, errors, source) no program can judge.
package main

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	bare := 0
	for _, dir := range os.Args[1:] {
		list, err := undocumented(dir)
		if err != nil {
			fmt.Fprintln(os.Stderr, "apidoc:", err)
			os.Exit(1)
		}
		for _, what := range list {
			fmt.Println(what)
		}
		bare += len(list)
	}
	if bare > 0 {
		fmt.Fprintf(os.Stderr, "apidoc: %d exported names without a comment\n", bare)
		os.Exit(1)
	}
}

// undocumented lists what lacks a comment in the package of one directory, as
// FILE:LINE:COL: NAME.
func undocumented(dir string) ([]string, error) {
	p, err := build.ImportDir(dir, 0)
	if err != nil {
		return nil, err
	}
	v := &visitor{fset: token.NewFileSet()}
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(v.fset, filepath.Join(dir, name), nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	d, err := doc.NewFromFiles(v.fset, files, dir)
	if err == nil {
		v.walk(d)
	}
	return v.bare, err
}

type visitor struct {
	fset *token.FileSet
	bare []string
}

func (v *visitor) want(text, name string, at ast.Node) {
	if strings.TrimSpace(text) == "" {
		v.bare = append(v.bare, fmt.Sprintf("%s: %s", v.fset.Position(at.Pos()), name))
	}
}

func (v *visitor) walk(p *doc.Package) {
	if strings.TrimSpace(p.Doc) == "" {
		v.bare = append(v.bare, "package "+p.Name)
	}
	v.values(append(p.Consts, p.Vars...))
	v.funcs("", p.Funcs)
	for _, t := range p.Types {
		v.want(t.Doc, t.Name, t.Decl)
		v.values(append(t.Consts, t.Vars...))
		v.funcs("", t.Funcs)
		v.funcs(t.Name+".", t.Methods)
		for _, s := range t.Decl.Specs {
			v.fields(t.Name, t.Doc, s.(*ast.TypeSpec).Type)
		}
	}
}

// wellKnown are methods whose meaning is that of the interface they are for.
var wellKnown = map[string]bool{"Error": true, "Unwrap": true, "String": true}

func (v *visitor) funcs(of string, list []*doc.Func) {
	for _, f := range list {
		if of == "" || !wellKnown[f.Name] {
			v.want(f.Doc, of+f.Name, f.Decl)
		}
	}
}

// values takes a comment of the group for all of it.
func (v *visitor) values(list []*doc.Value) {
	for _, g := range list {
		for _, s := range g.Decl.Specs {
			spec := s.(*ast.ValueSpec)
			for _, n := range spec.Names {
				if n.IsExported() {
					v.want(g.Doc+spec.Doc.Text()+spec.Comment.Text(), n.Name, n)
				}
			}
		}
	}
}

// fields of structs, and methods of interfaces. One comment stands for the
// fields of one line, and for those right below without one of their own. A
// field whose type is one of ours has that type's comment, and one that the
// comment of the struct names has that.
func (v *visitor) fields(of, about string, t ast.Expr) {
	var list *ast.FieldList
	switch t := t.(type) {
	case *ast.StructType:
		list = t.Fields
	case *ast.InterfaceType:
		list = t.Methods
	default:
		return
	}
	last, text := -1, ""
	for _, f := range list.List {
		own := f.Doc.Text() + f.Comment.Text()
		line := v.fset.Position(f.Pos()).Line
		if own != "" || line != last+1 {
			text = own
		}
		last = v.fset.Position(f.End()).Line
		for _, n := range f.Names {
			if n.IsExported() && !ours(f.Type) && !strings.Contains(about, n.Name) {
				v.want(text, of+"."+n.Name, n)
			}
		}
	}
}

// ours reports whether a type, or what it is a list or map of or points to, is
// exported by the same package.
func ours(t ast.Expr) bool {
	switch t := t.(type) {
	case *ast.StarExpr:
		return ours(t.X)
	case *ast.ArrayType:
		return ours(t.Elt)
	case *ast.MapType:
		return ours(t.Value)
	case *ast.Ident:
		return t.IsExported()
	}
	return false
}

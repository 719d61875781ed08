//go:build ignore

// Command gen_suffixes writes the rules of the public suffix list, one a line,
// as the golang.org/x/net that this module requires has them. That package
// itself brings net/http into whatever imports it, and so into every start.
package main

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
)

func main() {
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "golang.org/x/net/publicsuffix").Output()
	if err != nil {
		log.Fatal(err)
	}
	table, err := os.ReadFile(filepath.Join(string(bytes.TrimSpace(dir)), "table_test.go"))
	if err != nil {
		log.Fatal(err)
	}
	_, rules, ok := bytes.Cut(table, []byte("\nvar rules = [...]string{\n"))
	rules, _, end := bytes.Cut(rules, []byte("\n}\n"))
	if !ok || !end {
		log.Fatal("table_test.go has no list of rules")
	}
	var out bytes.Buffer
	out.WriteByte('\n')
	for _, m := range regexp.MustCompile(`(?m)^\t"([^"]+)",$`).FindAllSubmatch(rules, -1) {
		fmt.Fprintf(&out, "%s\n", m[1])
	}
	if err := os.WriteFile("suffixes.txt", out.Bytes(), 0o644); err != nil {
		log.Fatal(err)
	}
}

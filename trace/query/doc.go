// Package query is the language of "agentguard trace query": expressions over
// the fields of docs/record.md that are true or false of one record.
//
//	expr   = and { ("or" | "||") and }
//	and    = not { ("and" | "&&") not }
//	not    = ("not" | "!") not | "(" expr ")" | test
//	test   = FIELD                              the record has the field
//	       | FIELD op VALUE                     op: = == != < <= > >= ~ !~
//	       | FIELD "glob" VALUE                 * ? within a name, ** across names
//	       | FIELD "in" "(" VALUE { "," VALUE } ")"
//	       | ADDR "in" PREFIX
//	VALUE  = a word, or a string in '...' or "..." (with \" \\ \n \t \r \0 \xNN)
//
// A record without the field satisfies no test of it, not != either, so that
// "errno != ENOENT" speaks of failed calls only; "not errno = ENOENT" speaks of
// the others too. Texts compare as bytes, numbers as numbers with optional units
// (10MiB, 1.5s), addresses match prefixes. A regular expression is Go's: it runs
// in time linear in the text.
package query

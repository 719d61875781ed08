package policy

import "testing"

// The launch path of a run without a policy file, and with one.
func BenchmarkMerge(b *testing.B) {
	src := []byte("sandbox:\n  filesystem: {read_only_mounts: [/a, /b], writable_mounts: [/c]}\n  process: {max_memory_mb: 512}\n")
	for _, file := range []bool{false, true} {
		name := map[bool]string{false: "flags", true: "file"}[file]
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				files := []*File{Defaults(host)}
				if file {
					f, err := Parse("/p.yaml", src)
					if err != nil {
						b.Fatal(err)
					}
					files = append(files, f)
				}
				flags, err := FromFlags([]Flag{{"ro", "/x"}, {"mode", "rw"}, {"workspace", "/w"}})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := Merge(append(files, flags)...); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

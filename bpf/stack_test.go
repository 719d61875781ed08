package bpf

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// frame is a function of a program: the stack that it uses, and whom it calls.
type frame struct {
	bytes int
	calls []string
}

// frames finds the functions of a program, the first of which is its own.
func frames(prog *ebpf.ProgramSpec) (main string, all map[string]*frame) {
	all = map[string]*frame{}
	var now *frame
	copies := map[asm.Register]bool{} // of the frame pointer
	for _, ins := range prog.Instructions {
		if name := ins.Symbol(); name != "" && isFunction(prog, name) {
			now = &frame{}
			all[name] = now
			if main == "" {
				main = name
			}
		}
		if ins.IsFunctionCall() || ins.IsFunctionReference() {
			now.calls = append(now.calls, ins.Reference())
		}
		now.use(ins, copies)
	}
	return main, all
}

// isFunction tells functions from the labels inside them.
func isFunction(prog *ebpf.ProgramSpec, name string) bool {
	if name == prog.Name {
		return true
	}
	for _, ins := range prog.Instructions {
		if (ins.IsFunctionCall() || ins.IsFunctionReference()) && ins.Reference() == name {
			return true
		}
	}
	return false
}

// use notes how deep an instruction reaches: by the frame pointer, or by a copy
// of it to which a constant is added.
func (f *frame) use(ins asm.Instruction, copies map[asm.Register]bool) {
	class, depth := ins.OpCode.Class(), 0
	switch {
	case class == asm.LdXClass && ins.Src == asm.RFP, (class == asm.StClass || class == asm.StXClass) && ins.Dst == asm.RFP:
		depth = -int(ins.Offset)
	case class == asm.ALU64Class && ins.OpCode.ALUOp() == asm.Add && ins.OpCode.Source() == asm.ImmSource && copies[ins.Dst]:
		depth = -int(ins.Constant)
	}
	f.bytes = max(f.bytes, depth)
	copies[ins.Dst] = class == asm.ALU64Class && ins.OpCode.ALUOp() == asm.Mov && ins.OpCode.Source() == asm.RegSource && ins.Src == asm.RFP
}

// deepest is the most that a function and what it calls can use, as the verifier
// reckons (check_max_stack_depth of kernel/bpf/verifier.c).
func deepest(all map[string]*frame, name string) int {
	f, below := all[name], 0
	for _, callee := range f.calls {
		below = max(below, deepest(all, callee))
	}
	return max(32, (f.bytes+31)/32*32) + below
}

// Kernels before 6.13 take no program whose functions together have more than
// 512 bytes of stack; the development kernel takes it.
func TestStackFitsOldKernels(t *testing.T) {
	for name, load := range map[string]func() (*ebpf.CollectionSpec, error){
		"egress": loadEgress, "sensor": loadSensor, "unixsock": loadUnixsock, "lookup": loadLookup, "resolve": loadResolve, "refuse": loadRefuse,
	} {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		for _, prog := range spec.Programs {
			main, all := frames(prog)
			used := deepest(all, main)
			t.Logf("%s: %s uses %d bytes", name, prog.Name, used)
			if used > 512 {
				t.Errorf("%s: %s and its functions may use %d bytes of stack", name, prog.Name, used)
			}
			if prog.Name == "sys_exit" && used < 256 {
				t.Errorf("sys_exit uses %d bytes only: they are not counted", used)
			}
		}
	}
}

package seal

import (
	"errors"
	"fmt"

	"cleat/internal/sys"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Call permits a system call if all conditions hold. A number may be listed several
// times: the call is permitted if the conditions of one entry hold.
type Call struct {
	Number uint32
	When   []Condition
}

// Condition compares one half of an argument, masked, with values. The lower half is all
// of an int, and of a flag word without high bits.
type Condition struct {
	Arg  int
	High bool // compare the upper half
	Mask uint32
	Any  []uint32 // permitted values
}

// ArgHighIs requires an argument's upper half to be value.
func ArgHighIs(arg int, value uint32) Condition {
	return Condition{Arg: arg, High: true, Mask: 0xffffffff, Any: []uint32{value}}
}

// ArgIs requires an argument's lower half to be one of values.
func ArgIs(arg int, values ...uint32) Condition {
	return Condition{Arg: arg, Mask: 0xffffffff, Any: values}
}

// ArgHas requires the bits under mask to equal value.
func ArgHas(arg int, mask, value uint32) Condition {
	return Condition{Arg: arg, Mask: mask, Any: []uint32{value}}
}

// ArgLacks requires all bits under mask to be 0.
func ArgLacks(arg int, bits uint32) Condition { return ArgHas(arg, bits, 0) }

// Return values of a filter.
var (
	allow = bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	deny  = bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)}
	kill  = bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS}
	// unknown answers like a kernel that lacks the call.
	unknown = bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)}
)

// number loads the system call's number.
var number = bpf.LoadAbsolute{Off: sys.SeccompNr, Size: 4}

// filter assembles the program in the kernel's form.
func filter(calls []Call) ([]bpf.RawInstruction, error) {
	if sys.NativeArch == 0 {
		return nil, sys.ErrSeccompArch
	}
	prog, err := instructions(calls)
	if err != nil {
		return nil, err
	}
	return bpf.Assemble(prog)
}

// instructions emits one block per call: compare its number, test its conditions, allow.
// So no jump is longer than a block, however many calls there are.
func instructions(calls []Call) ([]bpf.Instruction, error) {
	prog := []bpf.Instruction{
		bpf.LoadAbsolute{Off: sys.SeccompArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: sys.NativeArch, SkipTrue: 1},
		kill,
		number,
		// clone3's flags are behind a pointer, which a filter cannot read. On ENOSYS the
		// C library, where there is one, creates threads with clone.
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_CLONE3, SkipFalse: 1},
		unknown,
	}
	always := map[uint32]bool{}
	for _, c := range calls {
		if always[c.Number] {
			return nil, fmt.Errorf("system call %d is listed again, behind an entry that lets it through whatever its arguments", c.Number)
		}
		always[c.Number] = len(c.When) == 0
		block := c.block()
		if len(block) > 255 {
			return nil, errors.New("too many conditions for one system call")
		}
		prog = append(prog, bpf.JumpIf{Cond: bpf.JumpEqual, Val: c.Number, SkipFalse: uint8(len(block))})
		prog = append(prog, block...)
	}
	return append(prog, deny), nil
}

// block emits the instructions that decide one call. It starts and, unless it permits the
// call, ends with the call's number in the accumulator.
func (c Call) block() []bpf.Instruction {
	if len(c.When) == 0 {
		return []bpf.Instruction{allow}
	}
	b := []bpf.Instruction{allow, number}
	for i := len(c.When) - 1; i >= 0; i-- { // backwards, because each jump needs the length of what follows
		b = append(c.When[i].test(len(b)-1), b...)
	}
	return b
}

// test emits instructions that continue behind themselves if the condition holds, and
// otherwise skip that many further instructions.
func (w Condition) test(over int) []bpf.Instruction {
	at := sys.SeccompArgs + 8*uint32(w.Arg)
	if w.High {
		at += 4
	}
	t := []bpf.Instruction{bpf.LoadAbsolute{Off: at, Size: 4}}
	if w.Mask != 0xffffffff {
		t = append(t, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: w.Mask})
	}
	for i, v := range w.Any {
		left := len(w.Any) - 1 - i
		jump := bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipTrue: uint8(left)}
		if left == 0 {
			jump.SkipFalse = uint8(over)
		}
		t = append(t, jump)
	}
	return t
}

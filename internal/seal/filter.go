package seal

import (
	"errors"
	"fmt"

	"cleat/internal/sys"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Call is a system call that is let through when all conditions hold. One number may be
// listed several times: it is let through when those of one entry hold.
type Call struct {
	Number uint32
	When   []Condition
}

// Condition compares half an argument under a mask with values. The lower half
// is all of an int, and of a flag word of which no high bit means anything.
type Condition struct {
	Arg  int
	High bool // the upper half
	Mask uint32
	Any  []uint32 // one of them
}

// ArgHighIs tells that an argument's upper half is value.
func ArgHighIs(arg int, value uint32) Condition {
	return Condition{Arg: arg, High: true, Mask: 0xffffffff, Any: []uint32{value}}
}

// ArgIs tells that an argument's lower half is one of the values.
func ArgIs(arg int, values ...uint32) Condition {
	return Condition{Arg: arg, Mask: 0xffffffff, Any: values}
}

// ArgHas tells that of the bits in mask those of value, and no others, are set.
func ArgHas(arg int, mask, value uint32) Condition {
	return Condition{Arg: arg, Mask: mask, Any: []uint32{value}}
}

// ArgLacks tells that none of the bits is set.
func ArgLacks(arg int, bits uint32) Condition { return ArgHas(arg, bits, 0) }

// Results of a filter.
var (
	allow = bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	deny  = bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)}
	kill  = bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS}
	// unknown is what an older kernel says.
	unknown = bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)}
)

// number loads the call's number.
var number = bpf.LoadAbsolute{Off: sys.SeccompNr, Size: 4}

// filter is what the kernel takes.
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

// instructions make one block for each call: its number, its conditions, allow. Jumps
// are short that way, whatever the number of calls.
func instructions(calls []Call) ([]bpf.Instruction, error) {
	prog := []bpf.Instruction{
		bpf.LoadAbsolute{Off: sys.SeccompArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: sys.NativeArch, SkipTrue: 1},
		kill,
		number,
		// Its flags are behind a pointer. The C library, where there is one, then
		// makes its threads with clone.
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

// block decides about one call. It starts and, unless it lets the call through, ends
// with the number in the accumulator.
func (c Call) block() []bpf.Instruction {
	if len(c.When) == 0 {
		return []bpf.Instruction{allow}
	}
	b := []bpf.Instruction{allow, number}
	for i := len(c.When) - 1; i >= 0; i-- { // from the end: then it is known how far that is
		b = append(c.When[i].test(len(b)-1), b...)
	}
	return b
}

// test goes on behind itself when the condition holds, and over as many instructions
// more when not.
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

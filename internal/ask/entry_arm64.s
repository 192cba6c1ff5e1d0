#include "go_asm.h"
#include "textflag.h"

// On the stack are, from below: a return address and atEntry's two arguments, where the
// stack was, what stands for a goroutine (struct g, runtime/runtime2.go: stack.lo,
// stack.hi, stackguard0, stackguard1), and atEntry's scratch.

TEXT ·entry(SB), NOSPLIT|NOFRAME|TOPFRAME, $0-0
	MOVD	RSP, R0
	SUB	$const_scratchSize, RSP, R1
	SUB	$64, R1, R2
	MOVD	R2, RSP
	MOVD	R0, 24(RSP)
	ADD	$32, RSP, g
	STP	(ZR, ZR), 0(g)
	STP	(ZR, ZR), 16(g)
	MOVD	·begin(SB), R26
	MOVD	(R26), R3
	CALL	(R3)
	MOVD	24(RSP), R0
	MOVD	R0, RSP
	JMP	_rt0_arm64_linux(SB)

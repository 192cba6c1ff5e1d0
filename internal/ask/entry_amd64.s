#include "go_asm.h"
#include "textflag.h"

// On the stack are, from below: atEntry's two arguments, where the stack was, what stands
// for a goroutine (struct g, runtime/runtime2.go: stack.lo, stack.hi, stackguard0,
// stackguard1), and atEntry's scratch.

TEXT ·entry(SB), NOSPLIT|NOFRAME|TOPFRAME, $0-0
	MOVQ	SP, AX
	SUBQ	$(64+const_scratchSize), SP
	ANDQ	$~15, SP
	MOVQ	AX, 16(SP)
	LEAQ	64(SP), BX
	LEAQ	32(SP), R14
	XORPS	X15, X15
	MOVUPS	X15, 0(R14)
	MOVUPS	X15, 16(R14)
	MOVQ	·begin(SB), DX
	MOVQ	(DX), CX
	CALL	CX
	MOVQ	16(SP), SP
	JMP	_rt0_amd64_linux(SB)

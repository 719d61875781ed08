#include "textflag.h"

// func outb(port uint16, value byte)
// The one instruction Go has no function for: cloud kernels have no /dev/port.
TEXT ·outb(SB), NOSPLIT, $0-3
	MOVW port+0(FP), DX
	MOVB value+2(FP), AX
	OUTB
	RET

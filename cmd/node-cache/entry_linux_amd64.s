// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// entry calls answerProbe with the kernel's stack, and then begins as every Go program does.
// Compiled code finds its goroutine eight bytes below FS.
TEXT ·entry(SB), NOSPLIT|NOFRAME, $0
	MOVL $158, AX    // arch_prctl
	MOVL $0x1002, DI // ARCH_SET_FS
	LEAQ ·entryThread+8(SB), SI
	SYSCALL
	LEAQ ·entryGoroutine(SB), AX
	MOVQ AX, ·entryThread(SB)
	MOVQ SP, AX
	SUBQ $16, SP // the kernel aligns it by 16
	MOVQ AX, 0(SP)
	CALL ·answerProbe(SB)
	ADDQ $16, SP
	JMP  _rt0_amd64_linux(SB)

// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// entry calls answerProbe with the kernel's stack, and then begins as every Go program does.
TEXT ·entry(SB), NOSPLIT|NOFRAME, $0
	MOVD $·entryGoroutine(SB), g
	MOVD RSP, R0
	SUB  $32, RSP
	MOVD R0, 8(RSP)
	CALL ·answerProbe(SB)
	ADD  $32, RSP
	JMP  _rt0_arm64_linux(SB)

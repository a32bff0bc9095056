// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// apart keeps Ctrl-C, which the terminal sends to the whole process group, from a program.
func apart(program *exec.Cmd) { program.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

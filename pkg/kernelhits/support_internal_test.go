// SPDX-License-Identifier: Apache-2.0

package kernelhits

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/nodecache/node-cache/pkg/hint"
	"golang.org/x/sys/unix"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	refused := &ebpf.VerifierError{Cause: unix.EACCES, Log: []string{"0: R1=ctx", "R1 pointer arithmetic prohibited", "processed 453 insns"}}
	for _, tt := range []struct {
		name    string
		err     error
		release string
		missing []string
		want    string
	}{
		{"no BPF", unix.ENOSYS, "6.12.1", nil, "the kernel has no BPF"},
		{"an old kernel", refused, "5.10.0-32-amd64", nil, "Linux 5.10.0-32-amd64 is too old: the kernel refused the program: R1 pointer arithmetic prohibited: permission denied"},
		{"an older kernel", unix.EINVAL, "4.19.0", []string{"BPF", "PERFMON"}, "Linux 4.19.0 is too old: loading the program: invalid argument"},
		{"no capability", fmt.Errorf("map create: %w", unix.EPERM), "6.1.0-26-amd64", []string{"BPF", "NET_ADMIN"}, "missing capability: BPF, NET_ADMIN"},
		{"all but PERFMON, without which the verifier is strict", refused, "5.12.0", []string{"PERFMON"}, "missing capability: PERFMON"},
		{"seccomp", unix.EPERM, "6.1.0", nil, "the system call bpf is denied: loading the program: operation not permitted"},
		{"the verifier", refused, "7.0.0", nil, "the kernel refused the program: R1 pointer arithmetic prohibited: permission denied"},
		{"memory", unix.ENOMEM, "6.1.0", []string{"PERFMON"}, "loading the program: cannot allocate memory"},
	} {
		got := explain(tt.err, tt.release, tt.missing)
		if got.Error() != tt.want || hint.Of(got) == "" {
			t.Errorf("%s: got %q, want %q and a hint", tt.name, got, tt.want)
		}
	}
}

// TestSupported loads the programs, or skips where this kernel cannot.
func TestSupported(t *testing.T) {
	t.Parallel()
	hook, err := Supported()
	if err != nil {
		t.Skip(err)
	}
	if hook != hookTCX && hook != hookClsact {
		t.Errorf("hook %q", hook)
	}
}

// SPDX-License-Identifier: Apache-2.0

package kernelhits

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/nodecache/node-cache/pkg/capabilities"
	"github.com/nodecache/node-cache/pkg/hint"
)

// The hooks of the programs, see [Responder.Hook].
const (
	hookTCX    = "tcx"
	hookClsact = "clsact"
)

// Needs returns the capabilities for Open. PERFMON is not needed afterwards.
func Needs() []cap.Value {
	return []cap.Value{capabilities.BPF, capabilities.NetAdmin, capabilities.Perfmon}
}

// Supported loads the programs, closes them, and returns their hook. An error has a hint in most cases.
func Supported() (hook string, err error) {
	k, err := Open(Config{Size: AnswerSize, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return "", err
	}
	defer k.Close()
	_, err = link.AttachTCX(link.TCXOptions{Interface: math.MaxInt32, Program: k.objects.AnswerHit, Attach: ebpf.AttachTCXIngress}) // no such interface
	if errors.Is(err, link.ErrNotSupported) {
		return hookClsact, nil
	}
	return hookTCX, nil
}

// The first kernel with the instructions of the programs, which return the value before an atomic addition.
const oldestMajor, oldestMinor = 5, 12

// loadError explains why the programs could not be loaded.
func loadError(err error) error {
	var name unix.Utsname
	_ = unix.Uname(&name) // it never fails
	return explain(err, unix.ByteSliceToString(name.Release[:]), capabilities.Missing(Needs()...))
}

// explain explains err on a kernel of that release, in a process without the missing capabilities.
func explain(err error, release string, missing []string) error {
	denied := errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
	var major, minor int
	_, _ = fmt.Sscanf(release, "%d.%d", &major, &minor)
	switch {
	case errors.Is(err, unix.ENOSYS):
		return &hint.Error{Err: errors.New("the kernel has no BPF"), Hint: "use a kernel that is built with CONFIG_BPF_SYSCALL"}
	case major < oldestMajor || major == oldestMajor && minor < oldestMinor:
		return &hint.Error{
			Err: errors.New("Linux " + release + " is too old: " + short(err)), Hint: fmt.Sprintf("use Linux %d.%d or later", oldestMajor, oldestMinor),
		}
	case denied && len(missing) > 0:
		return &hint.Error{
			Err: errors.New("missing capability: " + strings.Join(missing, ", ")), Hint: "add them to securityContext.capabilities.add of the container, see docs/kernel.md",
		}
	case errors.Is(err, unix.EPERM):
		return &hint.Error{
			Err: errors.New("the system call bpf is denied: " + short(err)), Hint: "allow it in the container's seccomp profile, and in AppArmor, SELinux or the kernel's lockdown",
		}
	}
	return &hint.Error{Err: errors.New(short(err)), Hint: "report this with the kernel's version; hits are answered in the process"}
}

// short returns the text of err with the last line of the verifier's log, which has thousands.
func short(err error) string {
	var verifier *ebpf.VerifierError
	if errors.As(err, &verifier) && len(verifier.Log) > 0 {
		return fmt.Sprintf("the kernel refused the program: %s: %v", verifier.Log[max(0, len(verifier.Log)-2)], verifier.Cause)
	}
	return fmt.Sprintf("loading the program: %v", err)
}

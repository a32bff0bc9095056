// SPDX-License-Identifier: Apache-2.0

package capabilities

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// The capabilities that the agent and the doctor may need.
const (
	NetAdmin       = cap.NET_ADMIN        // to change links and rules, and to mark packets
	NetBindService = cap.NET_BIND_SERVICE // to bind ports below 1024
	NetRaw         = cap.NET_RAW          // to open raw sockets, as the iptables programs do
	SysAdmin       = cap.SYS_ADMIN        // to enter namespaces
	BPF            = cap.BPF              // to load BPF programs
	Perfmon        = cap.PERFMON          // to load a BPF program that compares pointers
)

// Missing returns the names of the capabilities in needs that are not in the effective
// set of this thread, in the same order: in upper case without the prefix CAP_, as in a
// Kubernetes securityContext.
func Missing(needs ...cap.Value) []string {
	names, _ := MissingOf(0, needs...) // pid 0: this thread; on an error names has all of needs
	return names
}

// MissingOf is Missing for another process. It returns an error if there is no such process.
func MissingOf(pid int, needs ...cap.Value) (names []string, err error) {
	has, err := cap.GetPID(pid)
	for _, need := range needs {
		usable := false
		if err == nil {
			usable, _ = has.GetFlag(cap.Effective, need)
		}
		if !usable {
			names = append(names, strings.ToUpper(strings.TrimPrefix(need.String(), "cap_")))
		}
	}
	return names, err
}

// Drop irrevocably removes all capabilities except keep from every thread of this
// process. A capability in keep that the process does not have is ignored.
//
// Programs that this process starts get no more either. Drop reduces the bounding set
// to keep if the process has SETPCAP, and sets no_new_privs, which disables setuid and
// file capabilities. A program still inherits the kept capabilities if the process runs
// as root, and the ambient ones.
//
// Drop also removes DAC_OVERRIDE and similar capabilities: root then reads other users' files
// only if their mode permits it. After an error some of the capabilities may be gone.
func Drop(keep []cap.Value) error {
	kept := make(map[cap.Value]bool, len(keep))
	for _, v := range keep {
		kept[v] = true
	}
	had, err := cap.GetPID(0)
	if err != nil {
		return fmt.Errorf("reading the capabilities of this process: %w", err)
	}
	if err := reduceBounding(had, kept); err != nil {
		return err
	}
	left, err := intersect(had, kept)
	if err != nil {
		return fmt.Errorf("choosing the capabilities to keep: %w", err)
	}
	if err := left.SetProc(); err != nil {
		return fmt.Errorf("dropping capabilities: %w", err)
	}
	if _, err := cap.Prctlw(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	return nil
}

// reduceBounding drops all but kept from the bounding set if this process has SETPCAP.
func reduceBounding(had *cap.Set, kept map[cap.Value]bool) error {
	if allowed, err := had.GetFlag(cap.Effective, cap.SETPCAP); err != nil || !allowed {
		return nil //nolint:nilerr // a kernel that does not know SETPCAP does not allow it
	}
	for v := range cap.MaxBits() {
		if bound, err := cap.GetBound(v); kept[v] || err != nil || !bound {
			continue
		}
		if err := cap.DropBound(v); err != nil {
			return fmt.Errorf("dropping the capability %s from the bounding set: %w", v, err)
		}
	}
	return nil
}

// intersect returns the part of had that is in kept. It keeps no ambient capabilities
// that are not inheritable as well.
func intersect(had *cap.Set, kept map[cap.Value]bool) (*cap.Set, error) {
	left := cap.NewSet()
	for v := range kept {
		for to, from := range map[cap.Flag]cap.Flag{
			cap.Permitted: cap.Permitted, cap.Effective: cap.Permitted, cap.Inheritable: cap.Inheritable,
		} {
			has, err := had.GetFlag(from, v)
			if err != nil {
				return nil, err
			}
			if err := left.SetFlag(to, has, v); err != nil {
				return nil, err
			}
		}
	}
	return left, nil
}

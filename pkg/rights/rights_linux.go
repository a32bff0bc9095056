// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// value is r's number in the kernel.
func value(r Right) (cap.Value, error) { return cap.FromName("cap_" + strings.ToLower(string(r))) }

func missing(needs []Right) []string {
	has, err := cap.GetPID(0) // of this thread
	var names []string
	for _, need := range needs {
		v, unknown := value(need)
		usable := false
		if err == nil && unknown == nil {
			usable, _ = has.GetFlag(cap.Effective, v)
		}
		if !usable {
			names = append(names, string(need))
		}
	}
	return names
}

func drop(keep []Right) error {
	kept := make(map[cap.Value]bool, len(keep))
	for _, r := range keep {
		v, err := value(r)
		if err != nil {
			return fmt.Errorf("keeping the capability %s: %w", r, err)
		}
		kept[v] = true
	}
	had, err := cap.GetPID(0)
	if err != nil {
		return fmt.Errorf("reading the capabilities of this process: %w", err)
	}
	if err := narrow(had, kept); err != nil {
		return err
	}
	left, err := reduced(had, kept)
	if err != nil {
		return fmt.Errorf("choosing the capabilities to keep: %w", err)
	}
	if err := left.SetProc(); err != nil {
		return fmt.Errorf("giving up capabilities: %w", err)
	}
	if _, err := cap.Prctlw(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	return nil
}

// narrow cuts the bounding set, if that is allowed.
func narrow(had *cap.Set, kept map[cap.Value]bool) error {
	if allowed, err := had.GetFlag(cap.Effective, cap.SETPCAP); err != nil || !allowed {
		return nil //nolint:nilerr // a kernel that does not know of it allows it less
	}
	for v := range cap.MaxBits() {
		if bound, err := cap.GetBound(v); kept[v] || err != nil || !bound {
			continue
		}
		if err := cap.DropBound(v); err != nil {
			return fmt.Errorf("giving up the capability %s for programs: %w", v, err)
		}
	}
	return nil
}

// reduced is what is left of had. Ambient capabilities go with the inheritable ones.
func reduced(had *cap.Set, kept map[cap.Value]bool) (*cap.Set, error) {
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

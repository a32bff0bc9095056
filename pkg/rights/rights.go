// SPDX-License-Identifier: Apache-2.0

package rights

// A Right is a capability by its name in upper case without CAP_, as Kubernetes
// writes it.
type Right string

// The rights that an agent may need.
const (
	NetAdmin       Right = "NET_ADMIN"        // links, rules, marks
	NetBindService Right = "NET_BIND_SERVICE" // ports below 1024
	NetRaw         Right = "NET_RAW"          // raw sockets, which the iptables programs open
)

// Missing names those of needs that this process may not use now, in their order.
// One that the kernel does not know is missing.
func Missing(needs ...Right) []string { return missing(needs) }

// Drop gives up all capabilities but those of keep, for good: what is not there
// is not asked for, and no program that this process runs gets more either. For
// such programs two more things are done: the bounding set is cut to keep, where
// SETPCAP allows it, and no_new_privs is set, so that setuid and file capabilities
// give them nothing. A program still gets what is kept of a process of root, and
// what is ambient.
//
// Rights to files go as well: of files that others own, root then reads those only
// that everybody may. An error may leave a part of the rights given up.
func Drop(keep ...Right) error { return drop(keep) }

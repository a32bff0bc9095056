// SPDX-License-Identifier: Apache-2.0

package capabilities

// A Capability is the upper-case name of a Linux capability without the prefix CAP_,
// as in a Kubernetes securityContext.
type Capability string

// The capabilities that the agent may need.
const (
	NetAdmin       Capability = "NET_ADMIN"        // links, rules, packet marks
	NetBindService Capability = "NET_BIND_SERVICE" // ports below 1024
	NetRaw         Capability = "NET_RAW"          // raw sockets, which the iptables programs open
)

// Missing returns the names of the capabilities in needs that are not in the effective
// set of this thread, in the same order. An unknown capability counts as missing.
func Missing(needs ...Capability) []string { return missing(needs) }

// Drop irrevocably removes all capabilities except keep from every thread of this
// process. A capability in keep that the process does not have is ignored.
//
// Programs that this process starts get no more either. Drop reduces the bounding set
// to keep if the process has SETPCAP, and sets no_new_privs, which disables setuid and
// file capabilities. A program still inherits the kept capabilities if the process runs
// as root, and the ambient ones.
//
// Drop also removes DAC_OVERRIDE and its like: root then reads other
// users' files only if they are world-readable. After an error some of the capabilities
// may be gone.
func Drop(keep ...Capability) error { return drop(keep) }

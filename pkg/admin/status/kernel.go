// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"time"

	"github.com/nodecache/node-cache/pkg/kernelhits"
)

// Kernel describes the hits answered in the kernel.
type Kernel struct {
	// State is KernelOn, or what stops the answers and why: "off by configuration", "paused: dnstap is on", "not supported: …".
	State      string   `json:"state"`
	Hook       string   `json:"hook,omitempty"`    // how the programs are attached: "tcx" or "clsact"; empty: they are not loaded
	Interfaces int      `json:"interfaces"`        // number of pods' interfaces that can have hits
	Failed     []string `json:"failed,omitempty"`  // those that cannot, and why
	PermitName float64  `json:"permitNameSeconds"` // how long a pod gets the answer for a name after the agent has given it; 0: no limit
	kernelhits.Stats
	FullAgo *float64 `json:"fullAgoSeconds,omitempty"` // time since Full last rose; nil: it never has
}

// The states of the hits in the kernel that need no reason.
const (
	KernelOn            = "on"
	KernelOffConfigured = "off by configuration"
)

// KernelOf describes k in a state.
func KernelOf(k *kernelhits.Responder, state string, now time.Time) *Kernel {
	s := &Kernel{State: state, Hook: k.Hook(), Stats: k.Stats()}
	s.Interfaces, s.Failed = k.Interfaces()
	if last := k.LastFull(); !last.IsZero() {
		s.FullAgo = Seconds(now.Sub(last))
	}
	return s
}

// kernelFullFor is how long after Full last rose a full table is still a problem.
const kernelFullFor = 60.0 // seconds

func (l *problems) addKernel(k *Kernel) {
	if k == nil {
		return
	}
	if n := len(k.Failed); n > 0 {
		l.add(KernelIncomplete, "kernel", fmt.Sprintf("%s without hits, the first is %s", count(n, "interface"), k.Failed[0]),
			"the agent answers these pods itself; `node-cache doctor` shows what this node supports")
	}
	if k.FullAgo != nil && *k.FullAgo < kernelFullFor {
		l.add(KernelFull, "kernel", fmt.Sprintf("its %d answers are all in use: the agent answers other names itself", k.Capacity),
			"raise kernel.size, at most 8Mi, or find the pod that asks so many names with `node-cache top`")
	}
}

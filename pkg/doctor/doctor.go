// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/rules"
)

// Config is the configuration of this node's agent.
type Config struct {
	// Intercept means that the agent intercepts queries, by Rules. Owner and Fallback of the
	// rules are ignored; Services may be empty if the agent reads them from the cluster.
	// Without Intercept, Rules only has the agent's listen addresses.
	Intercept bool
	Rules     rules.Rules
	Backend   string // as configured: "auto", "nftables" or "iptables"

	// ManageLink means that the agent creates Link and puts its addresses on it.
	ManageLink bool
	Link       string

	Admin netip.AddrPort // of the agent's status page; zero: none
	Name  string         // a cluster name, absolute, that the agent must resolve; empty: none

	Timeout time.Duration // of one probe; 0: 1 s

	// PodCommand is the command that calls [InPod]; nil: no test from a pod.
	PodCommand []string

	Now func() time.Time // never nil
}

// A Doctor checks this node: the network namespace of the process.
type Doctor struct{ cfg Config }

// New validates c.
func New(c Config) (*Doctor, error) {
	if len(c.Rules.Addresses) == 0 || c.Rules.Port == 0 {
		return nil, errors.New("doctor: needs an address and a port of the agent")
	}
	if c.Now == nil {
		return nil, errors.New("doctor: needs a clock")
	}
	if c.Timeout == 0 {
		c.Timeout = time.Second
	}
	return &Doctor{cfg: c}, nil
}

// Run makes all checks. It takes a few times Timeout and leaves the node as it was. It
// returns an error only when ctx ends; all other errors are in the report.
func (d *Doctor) Run(ctx context.Context) (Report, error) {
	c := d.cfg
	c.Rules.Fallback = nil
	f := collect(ctx, &c)
	if err := ctx.Err(); err != nil {
		return Report{}, err
	}
	return Examine(c, f), nil
}

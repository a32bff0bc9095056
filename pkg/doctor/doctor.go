// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/rules"
)

// Config says how the agent of this node is configured.
type Config struct {
	// Intercept says that the agent is to intercept queries, by Rules. Owner and
	// Fallback of the rules are not looked at; Services may be empty if the agent
	// finds them out itself. Without it Rules say only where the agent listens.
	Intercept bool
	Rules     rules.Rules
	Backend   string // as it is configured: "auto", "nftables" or "iptables"

	// ManageLink says that the agent is to put its addresses on Link, which it makes.
	ManageLink bool
	Link       string

	Admin netip.AddrPort // of the agent's status page; the zero value: there is none
	Name  string         // of the cluster, absolute, that the agent must know; empty: none

	Timeout time.Duration // of one probe; 0: 1 s

	// PodCommand is the command that calls [InPod]; nil: no pod is played.
	PodCommand []string

	Now func() time.Time // never nil
}

// A Doctor examines this node: the network namespace of the process.
type Doctor struct{ cfg Config }

// New checks c.
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

// Run looks at everything and says what it means. It takes a few times Timeout, and
// leaves the node as it was. An error is returned only when ctx ends; whatever else
// fails is in the report.
func (d *Doctor) Run(ctx context.Context) (Report, error) {
	c := d.cfg
	c.Rules.Fallback = nil
	f := collect(ctx, &c)
	if err := ctx.Err(); err != nil {
		return Report{}, err
	}
	return Examine(c, f), nil
}

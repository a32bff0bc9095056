// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
)

// A podCommand is a request to the pod process.
type podCommand struct {
	Net     *podNet       `json:"net,omitempty"` // the network to configure
	Probes  []Probe       `json:"probes,omitempty"`
	Timeout time.Duration `json:"timeout,omitempty"` // of one probe
}

// A podResult is the reply to a podCommand.
type podResult struct {
	Outcomes []Outcome `json:"outcomes"`
	Error    string    `json:"error"`
}

// InPod is the pod process of a [Doctor]. It reads commands from in and writes results to
// out until in ends. It then returns at once, because no process waits for its results.
// It has to run in its own network namespace.
func InPod(ctx context.Context, in io.Reader, out io.Writer, now func() time.Time) error {
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	orders, ended := make(chan podCommand), error(nil)
	go func() { // ends with in: nothing else unblocks the read
		defer close(orders)
		defer cancel()
		ended = readCommands(working, in, orders)
	}()
	results := json.NewEncoder(out)
	for {
		select {
		case o, ok := <-orders:
			if !ok {
				return ended
			}
			if err := results.Encode(o.run(working, now)); err != nil {
				return fmt.Errorf("answering: %w", err)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// readCommands passes on the commands from in, until it or ctx ends.
func readCommands(ctx context.Context, in io.Reader, orders chan<- podCommand) error {
	for d := json.NewDecoder(in); ; {
		var o podCommand
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading a command: %w", err)
		}
		select {
		case orders <- o:
		case <-ctx.Done():
			return nil
		}
	}
}

func (o *podCommand) run(ctx context.Context, now func() time.Time) podResult {
	var r podResult
	if o.Net != nil {
		if err := o.Net.setup(ctx); err != nil {
			r.Error = err.Error()
		}
	}
	r.Outcomes = prober{timeout: o.Timeout, now: now}.probeAll(ctx, o.Probes)
	return r
}

// setup configures the addresses and routes of the pod's links.
func (n *podNet) setup(ctx context.Context) error {
	for _, name := range []string{"lo", podLink} {
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err != nil {
			return fmt.Errorf("setting link %s up: %w", name, err)
		}
		if name == podLink {
			err = n.configure(link)
		}
		if err != nil {
			return err
		}
	}
	own := make([]netip.Addr, 0, len(n.Own))
	for _, a := range n.Own {
		own = append(own, a.Addr())
	}
	return awaitUp(ctx, podLink, own)
}

func (n *podNet) configure(link netlink.Link) error {
	for i, own := range n.Own {
		if err := addAddress(link, own); err != nil {
			return err
		}
		if err := addNeighbour(link, n.Gateway[i], n.Node); err != nil {
			return err
		}
		all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if own.Addr().Is6() {
			all = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		route := &netlink.Route{
			LinkIndex: link.Attrs().Index, Gw: n.Gateway[i].AsSlice(),
			Dst: &net.IPNet{IP: all.Addr().AsSlice(), Mask: net.CIDRMask(0, all.Addr().BitLen())},
		}
		if err := netlink.RouteAdd(route); err != nil {
			return fmt.Errorf("adding a route via %s: %w", n.Gateway[i], err)
		}
	}
	return nil
}

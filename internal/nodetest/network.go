// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

// Options describe a network. The zero value has two pods and both IP families.
type Options struct {
	Pods   int  // pods on the node; 0: 2; at most 200
	NoPods bool // none: the test makes its own
	NoIPv6 bool // IPv4 only
}

// A Network is a node, its pods and an upstream host. Each is a network namespace.
type Network struct {
	Node     *Host
	Upstream *Host
	Pods     []*Host

	dir string // holds the lock of iptables-legacy; programs without privileges must be able to open that file
}

// ServiceIPv4 is the address of the DNS service, which the node routes to the upstream host.
func ServiceIPv4() netip.Addr { return netip.AddrFrom4([4]byte{10, 96, 0, 10}) }

// ServiceIPv6 is the address of the DNS service, which the node routes to the upstream host.
func ServiceIPv6() netip.Addr { return netip.MustParseAddr("fd00:96::a") }

// New creates a network. It needs root. The caller closes it.
func New(o Options) (*Network, error) {
	if o.Pods == 0 && !o.NoPods {
		o.Pods = 2
	}
	if o.Pods < 0 || o.Pods > 200 {
		return nil, fmt.Errorf("a network of %d pods", o.Pods)
	}
	n := &Network{}
	if err := n.build(o); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *Network) build(o Options) (err error) {
	if n.dir, err = os.MkdirTemp("", "nodetest-"); err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	if n.Node, err = n.NewHost("node"); err != nil {
		return err
	}
	if err := n.Node.forward(); err != nil {
		return err
	}
	if n.Upstream, err = n.NewHost("upstream"); err != nil {
		return err
	}
	if err := n.Node.connect(n.Upstream, newVethPair("up0", 201, 0, o)); err != nil {
		return err
	}
	for i := range o.Pods {
		pod, err := n.NewHost(fmt.Sprintf("pod%d", i))
		if err != nil {
			return err
		}
		n.Pods = append(n.Pods, pod)
		if err := n.Node.connect(pod, newVethPair(fmt.Sprintf("pod%d", i), 200, i, o)); err != nil {
			return err
		}
	}
	if err := n.Node.defaultRoute(n.Upstream.IPv4, n.Upstream.IPv6); err != nil {
		return err
	}
	if err := n.Upstream.AddAddress(ServiceIPv4()); err != nil || o.NoIPv6 {
		return err
	}
	return n.Upstream.AddAddress(ServiceIPv6())
}

// NewHost creates a host with a loopback device only. Close does not remove it: the caller does, with [Host.Close].
func (n *Network) NewHost(name string) (*Host, error) {
	h := &Host{Name: name, lock: filepath.Join(n.dir, name+"-xtables.lock")}
	if err := h.open(); err != nil {
		return nil, fmt.Errorf("making host %s, which only root may: %w", name, err)
	}
	return h, nil
}

// Hosts returns all hosts: the node, the upstream host and the pods.
func (n *Network) Hosts() []*Host {
	var all []*Host
	for _, h := range append([]*Host{n.Node, n.Upstream}, n.Pods...) {
		if h != nil {
			all = append(all, h)
		}
	}
	return all
}

// Close kills every process that still runs in the network and removes the network. It may be called more than once.
func (n *Network) Close() error {
	hosts := n.Hosts()
	errs := make([]error, 0, 2+len(hosts))
	errs = append(errs, killAll(hosts))
	for _, h := range hosts {
		errs = append(errs, h.Close())
	}
	if n.dir != "" {
		errs = append(errs, os.RemoveAll(n.dir))
	}
	return errors.Join(errs...)
}

// Start creates a network that ends with the test. It skips the test without root.
func Start(tb testing.TB, o Options) *Network {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("making network namespaces needs root")
	}
	n, err := New(o)
	if err != nil {
		tb.Fatalf("making a network: %v", err)
	}
	tb.Cleanup(func() {
		if err := n.Close(); err != nil {
			tb.Errorf("removing the network: %v", err)
		}
	})
	return n
}

// SPDX-License-Identifier: Apache-2.0

package kubenode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// startLimit bounds each wait while a cluster starts. A machine that runs other tests beside this one is slow.
const startLimit = 2 * time.Minute

// Options say what a cluster of two nodes is like.
type Options struct {
	ProxyMode string   // of kube-proxy: iptables or nftables
	Images    []string // archives that every node is to have, besides those of this package
	DualStack bool     // IPv6 beside IPv4, for nodes, pods and Services
	IPv6Only  bool     // IPv6 instead of IPv4
	Bridge    bool     // pods share a bridge of their node, as CNI plugin bridge makes it; else each has a veth and a route by plugin ptp
	Registry  bool     // nodes pull images of ghcr.io from Registry, a registry on the control machine
}

// A Cluster is a running one.
type Cluster struct {
	Control *Host
	Nodes   []*Node

	internet *proctest.DNSServer
	silent   atomic.Bool // the Internet's DNS server
	options  Options
	dir      string // keys, kubeconfig, images and logs
	cgroup   string
	programs programs
	config   *rest.Config
	client   *kubernetes.Clientset
}

// programs are paths of what the machines run.
type programs struct{ kube, etcd, coredns, containerd, shim, pod string }

// Start runs a cluster for a test and ends it with the test. When the test has failed, the log has the end of what each
// program wrote. It skips the test without IPv6 where that is wanted.
func Start(tb testing.TB, o Options) *Cluster {
	tb.Helper()
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil && (o.DualStack || o.IPv6Only) {
		tb.Skip("no IPv6 in the kernel")
	}
	c := &Cluster{options: o, dir: tb.TempDir(), cgroup: fmt.Sprintf("%s%d-%d", cgroupPrefix, os.Getpid(), clusters.Add(1))}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("the cluster's programs:\n%s", c.logTails())
		}
		if err := c.close(); err != nil {
			tb.Errorf("ending the cluster: %v", err)
		}
	})
	if err := c.build(tb.Context()); err != nil {
		tb.Fatalf("building a cluster's programs: %v", err)
	}
	if err := c.launch(tb.Context()); err != nil {
		tb.Fatalf("starting a cluster: %v", err)
	}
	return c
}

// Missing is why no cluster can run here; it is empty when one can.
func Missing() string {
	if os.Geteuid() != 0 {
		return "a cluster needs root"
	}
	for path, debian := range map[string]string{
		"/usr/sbin/runc": "runc", "/usr/lib/cni/ptp": "containernetworking-plugins", "/bin/busybox": "busybox-static",
		"/usr/sbin/iptables": "iptables", "/usr/sbin/nft": "nftables",
	} {
		if _, err := os.Stat(path); err != nil {
			return fmt.Sprintf("no %s: apt-get install %s", path, debian)
		}
	}
	return ""
}

// clusters counts those of this process, for the names of their control groups.
var clusters atomic.Int64 //nolint:gochecknoglobals // a counter of the process

// build makes the programs.
func (c *Cluster) build(ctx context.Context) error {
	for name, path := range map[string]*string{
		"kube": &c.programs.kube, "etcd": &c.programs.etcd, "coredns": &c.programs.coredns,
		"containerd": &c.programs.containerd, "containerd/shim": &c.programs.shim,
	} {
		var err error
		if *path, err = kubetest.Program(ctx, name); err != nil {
			return err
		}
	}
	c.programs.pod = filepath.Join(c.dir, "pod")
	return proctest.BuildPackage(c.programs.pod, "internal/kubenode/pod") //nolint:contextcheck // a build takes no context
}

func (c *Cluster) launch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*startLimit)
	defer cancel()
	if err := sweepCgroups(); err != nil {
		return err
	}
	if err := c.launchHosts(ctx); err != nil {
		return err
	}
	archives, err := c.writeImages()
	if err != nil {
		return err
	}
	group, early := errgroup.WithContext(ctx) // ends with the first error
	group.Go(func() error { return c.startControl(early) })
	group.Go(func() error { return c.startRegistry(early) })
	for _, n := range c.Nodes {
		group.Go(func() error {
			if err := n.startContainerd(early); err != nil {
				return err
			}
			for _, archive := range archives {
				if err := n.LoadImage(early, archive); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return c.launchKubelets(ctx)
}

func (c *Cluster) launchHosts(ctx context.Context) (err error) {
	if c.Control, err = newHost(ctx, "control", c.dir); err != nil {
		return err
	}
	if err := c.options.buildLAN(c.Control); err != nil {
		return err
	}
	machines := []*Host{c.Control}
	for i := 1; i <= 2; i++ {
		name := fmt.Sprintf("node%d", i)
		m, err := newHost(ctx, name, c.dir)
		if err != nil {
			return err
		}
		c.Nodes = append(c.Nodes, &Node{Host: m, cluster: c, number: i, cgroup: c.cgroup + "/" + name})
		machines = append(machines, m)
		if err := c.options.connect(c.Control, m, i); err != nil {
			return err
		}
	}
	for _, m := range machines {
		if err := errors.Join(c.linkPrograms(m), m.Write("/etc/resolv.conf", "nameserver "+c.options.internet().String()+"\n")); err != nil {
			return err
		}
	}
	if err := c.options.routePods(c.Control, machines[1:]); err != nil {
		return err
	}
	c.internet, err = serveInternet(c.Control, c.options.internet(), &c.silent) //nolint:contextcheck // it serves until Close
	return err
}

// connect makes the client.
func (c *Cluster) connect() (err error) {
	if c.config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig()); err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	c.config.Dial = c.Control.Dial
	c.config.QPS, c.config.Burst = 200, 400
	if c.client, err = kubernetes.NewForConfig(c.config); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	return nil
}

func (c *Cluster) launchKubelets(ctx context.Context) error {
	for _, n := range c.Nodes {
		if err := n.startKubelet(); err != nil {
			return err
		}
	}
	for _, n := range c.Nodes {
		if err := n.awaitReady(ctx); err != nil {
			return err
		}
	}
	return c.deployCoreDNS(ctx)
}

// close ends everything of the cluster.
func (c *Cluster) close() error {
	if c.internet != nil {
		c.internet.Close()
	}
	for _, m := range c.hosts() {
		m.Close()
	}
	return removeCgroup(c.cgroup)
}

// Kubeconfig is the path of a file with which kubectl on the control machine may do everything.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// Client speaks with the API server as one who may do everything.
func (c *Cluster) Client() *kubernetes.Clientset { return c.client }

// logTails are the ends of what the programs wrote.
func (c *Cluster) logTails() string {
	var b strings.Builder
	for _, m := range c.hosts() {
		for _, s := range m.services {
			fmt.Fprintf(&b, "--- %s of %s ---\n%s\n", s, m.Name, m.tail(s))
		}
	}
	return b.String()
}

// hosts are the control machine and the nodes, as far as they have been started.
func (c *Cluster) hosts() []*Host {
	all := make([]*Host, 0, 1+len(c.Nodes))
	if c.Control != nil {
		all = append(all, c.Control)
	}
	for _, n := range c.Nodes {
		all = append(all, n.Host)
	}
	return all
}

// waitUntil polls until something is so, and returns why it is not when ctx or the limit ends first.
func (c *Cluster) waitUntil(ctx context.Context, what string, condition func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		why := condition(ctx)
		if why == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w", what, why)
		case <-ticker.C:
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/retry"
)

const (
	quietTime    = 3 * time.Second // without a byte from the API server: everything was sent
	churnWorkers = 16
	smallSet     = 3       // endpoints of a service with an address
	smallFirst   = 1 << 22 // number of the first of them: headless services have fewer
)

// A clientCost is what one client costs the API server.
type clientCost struct {
	name        string
	skipped     string // why it has no figures
	sync, churn kubetest.Traffic
	syncTally   []kubetest.Tally
	churnTally  []kubetest.Tally
	cpu         time.Duration // of the client, while objects changed
	mib         float64       // resident at the end
}

// A client is a contender that runs in this part.
type client struct {
	contender

	cost    *clientCost
	began   time.Time     // before it was started
	cpu     time.Duration // when objects began to change
	before  kubetest.Traffic
	pid     int                     // 0: it does not run
	ended   func() error            // nil while it runs
	traffic func() kubetest.Traffic // so far
	close   func()
}

// cost starts every client, one after another, and then has objects change under all of them at once: each sees the
// same changes.
func (b *clusterBench) cost(ctx context.Context) error {
	if err := b.fillSlices(ctx); err != nil {
		return err
	}
	var clients []*client
	defer func() {
		for _, c := range clients {
			c.close()
		}
	}()
	for _, c := range b.chosen() {
		if c.apart == serveOnly {
			continue
		}
		got := &client{contender: c, cost: &clientCost{name: c.name}, began: time.Now()}
		b.report.costs = append(b.report.costs, got.cost)
		if err := b.startClient(ctx, got); err != nil {
			got.cost.skipped = oneLine(err)
		} else {
			clients = append(clients, got)
		}
		printf(b.progress, "first sync of %-18s %d KiB %s\n", c.name, got.cost.sync.ToClient>>10, got.cost.skipped)
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("measuring: %w", err)
		}
	}
	return b.churn(ctx, clients)
}

// startClient starts one and waits until it has everything.
func (b *clusterBench) startClient(ctx context.Context, c *client) error {
	begin := b.startHere
	if c.name == kubeProxyName {
		begin = b.startKubeProxy
	}
	if err := begin(ctx, c); err != nil {
		return err
	}
	var err error
	if c.cost.sync, err = c.awaitQuiet(ctx); err != nil {
		c.close()
	}
	return err
}

// startHere starts a client behind a proxy.
func (b *clusterBench) startHere(ctx context.Context, c *client) error {
	proxy, err := kubetest.NewProxy(ctx, b.cluster.Address())
	if err != nil {
		return err
	}
	p, _, err := b.startBehind(ctx, c.contender, proxy)
	if err != nil {
		proxy.Close()
		return err
	}
	c.pid, c.traffic = p.PID(), proxy.Traffic
	c.ended = func() error { return ended(p) }
	c.close = func() {
		p.Stop(grace)
		proxy.Close()
	}
	return nil
}

// startKubeProxy starts it in a network namespace of its own, where its rules apply to nothing else.
func (b *clusterBench) startKubeProxy(ctx context.Context, c *client) error {
	if os.Geteuid() != 0 {
		return errors.New("needs root for a network namespace")
	}
	if _, err := proctest.LookProgram("nft"); err != nil {
		return err
	}
	dir := filepath.Join(b.dir, c.name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("creating a folder: %w", err)
	}
	p, err := b.cluster.LaunchKubeProxy(ctx, dir, kubetest.KubeProxyOptions{})
	if err != nil {
		return err
	}
	c.pid, c.traffic, c.close = p.PID(), p.Traffic, p.Close
	c.ended = func() error { return nil } // without it there is no usage to read
	return pinTree(c.pid, serverCPU)
}

// awaitQuiet waits until the API server has sent objects and then nothing for a while.
func (c *client) awaitQuiet(ctx context.Context) (kubetest.Traffic, error) {
	deadline := time.Now().Add(startTimeout)
	seen, since := int64(0), time.Now()
	for time.Now().Before(deadline) {
		if err := retry.Sleep(ctx, 50*time.Millisecond); err != nil {
			return kubetest.Traffic{}, err
		}
		if err := c.ended(); err != nil {
			return kubetest.Traffic{}, err
		}
		got := c.traffic()
		switch {
		case got.ToClient != seen:
			seen, since = got.ToClient, time.Now()
		case got.ToClient > kubetest.Handshake && time.Since(since) >= quietTime:
			return got, nil
		}
	}
	return kubetest.Traffic{}, fmt.Errorf("the API server's traffic did not end in %s", startTimeout)
}

// churn changes objects and counts.
func (b *clusterBench) churn(ctx context.Context, clients []*client) error {
	for _, c := range clients {
		c.before = c.traffic()
		used, err := proctest.UsageOf(c.pid)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		c.cpu = used.CPU
	}
	begin := time.Now()
	if err := b.change(ctx); err != nil {
		return err
	}
	b.report.churned = time.Since(begin)
	if err := retry.Sleep(ctx, time.Second); err != nil { // the last events are on their way
		return err
	}
	requests, err := b.cluster.Audit()
	if err != nil {
		return err
	}
	for _, c := range clients {
		c.fillCost(requests, begin)
	}
	return nil
}

// fillCost fills the cost of a client; one that has ended meanwhile has none.
func (c *client) fillCost(requests []kubetest.Request, begin time.Time) {
	now := c.traffic()
	c.cost.churn = kubetest.Traffic{ToServer: now.ToServer - c.before.ToServer, ToClient: now.ToClient - c.before.ToClient}
	var sync, churn []kubetest.Request
	for _, r := range requests {
		switch {
		case !c.made(r):
		case r.Time.Before(begin):
			sync = append(sync, r)
		default:
			churn = append(churn, r)
		}
	}
	c.cost.syncTally, c.cost.churnTally = kubetest.Count(sync), kubetest.Count(churn)
	used, err := proctest.UsageOf(c.pid)
	if err := errors.Join(c.ended(), err); err != nil {
		c.cost.skipped = oneLine(err)
		return
	}
	c.cost.cpu, c.cost.mib = used.CPU-c.cpu, float64(used.RSS)/mib
}

// made reports whether a request was this client's. kube-proxy asks as an administrator, as others do.
func (c *client) made(r kubetest.Request) bool {
	if r.Time.Before(c.began) || r.User != c.user {
		return false
	}
	return c.user != kubetest.Admin || r.Agent == c.name
}

// change makes changes at an even rate, half of them to services and half to slices, each picked at random, and
// waits until all are made.
func (b *clusterBench) change(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(churnWorkers)
	made, late := 0, 0
	random := rand.New(rand.NewPCG(2, 0))
	services, slices := append(b.services(false), b.services(true)...), pick[*discoveryv1.EndpointSlice](b.objects)
	turns := make([]int, len(slices)) // how often each was changed
	ticker := time.NewTicker(time.Second / time.Duration(b.opts.rate))
	defer ticker.Stop()
	total := int(b.opts.churn.Seconds() * float64(b.opts.rate))
	for i := range total {
		select {
		case <-ctx.Done():
			return group.Wait()
		case <-ticker.C:
		}
		var one func() error
		if i%2 == 0 {
			service := services[random.IntN(len(services))]
			one = func() error { return b.changeService(ctx, service, i) }
		} else {
			n := random.IntN(len(slices))
			turn := turns[n]
			turns[n]++
			one = func() error { return b.changeSlice(ctx, slices[n], turn) }
		}
		made++
		if !group.TryGo(one) {
			late++
			group.Go(one)
		}
	}
	err := group.Wait()
	b.report.changes = made
	printf(b.progress, "%d changes, %d of them late\n", made, late)
	return err
}

// changeService gives a service another port.
func (b *clusterBench) changeService(ctx context.Context, s *corev1.Service, i int) error {
	patch := fmt.Sprintf(`[{"op":"replace","path":"/spec/ports/1/port","value":%d}]`, 10_000+i%50_000)
	_, err := b.cluster.Client().CoreV1().Services(s.Namespace).
		Patch(ctx, s.Name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("changing a service: %w", err)
	}
	return nil
}

// changeSlice makes an endpoint unready, or at the next turn ready again: a patch that changes nothing is no event.
func (b *clusterBench) changeSlice(ctx context.Context, s *discoveryv1.EndpointSlice, turn int) error {
	patch := fmt.Sprintf(`[{"op":"replace","path":"/endpoints/%d/conditions/ready","value":%t}]`, turn/2%len(s.Endpoints), turn%2 == 1)
	_, err := b.cluster.Client().DiscoveryV1().EndpointSlices(s.Namespace).
		Patch(ctx, s.Name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("changing a slice: %w", err)
	}
	return nil
}

// fillSlices gives each service with an address a few endpoints, as those of a real cluster have.
func (b *clusterBench) fillSlices(ctx context.Context) error {
	services := b.services(false)
	added := make([]runtime.Object, 0, len(services))
	for i, s := range services {
		added = append(added, kubetest.Slice(s, smallFirst+i*smallSet, 0, smallSet, false))
	}
	b.objects = append(b.objects, added...)
	return b.cluster.Load(ctx, added...)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodecache/node-cache/internal/kubetest"
)

const (
	quietTime    = 3 * time.Second // without a byte from the API server: everything was sent
	churnWorkers = 16
	smallSet     = 3 // endpoints of a service with an address
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
func (b *bench) cost(ctx context.Context) error {
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
		b.report.bills = append(b.report.bills, got.cost)
		if err := b.startClient(ctx, got); err != nil {
			got.cost.skipped = strings.ReplaceAll(err.Error(), "\n", "; ")
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
func (b *bench) startClient(ctx context.Context, c *client) error {
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
func (b *bench) startHere(ctx context.Context, c *client) error {
	proxy, err := kubetest.NewProxy(ctx, b.cluster.Address())
	if err != nil {
		return err
	}
	at, err := b.newInstance(ctx, c.contender, proxy)
	if err != nil {
		proxy.Close()
		return err
	}
	p, err := start(ctx, serverCPU, at.dir, c.argv(b, at))
	if err != nil {
		proxy.Close()
		return err
	}
	c.pid, c.ended, c.traffic = p.pid(), p.ended, proxy.Traffic
	c.close = func() {
		p.stop()
		proxy.Close()
	}
	return nil
}

// startKubeProxy starts it in a network namespace of its own, where its rules concern nobody.
func (b *bench) startKubeProxy(ctx context.Context, c *client) error {
	if os.Geteuid() != 0 {
		return errors.New("needs root for a network namespace")
	}
	if _, err := findProgram("nft"); err != nil {
		return err
	}
	dir := filepath.Join(b.dir, c.name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("creating a folder: %w", err)
	}
	p, err := b.cluster.LaunchKubeProxy(ctx, dir)
	if err != nil {
		return err
	}
	c.pid, c.traffic, c.close = p.PID(), p.Traffic, p.Close
	c.ended = func() error { return nil } // its memory says it
	return pinTree(c.pid, serverCPU)
}

// awaitQuiet waits until the API server has sent objects and then nothing for a while.
func (c *client) awaitQuiet(ctx context.Context) (kubetest.Traffic, error) {
	deadline := time.Now().Add(startTimeout)
	seen, since := int64(0), time.Now()
	for time.Now().Before(deadline) {
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return kubetest.Traffic{}, err
		}
		if err := c.ended(); err != nil {
			return kubetest.Traffic{}, err
		}
		got := c.traffic()
		switch {
		case got.ToClient != seen:
			seen, since = got.ToClient, time.Now()
		case got.ToClient > firstObjects && time.Since(since) >= quietTime:
			return got, nil
		}
	}
	return kubetest.Traffic{}, fmt.Errorf("the API server's traffic did not end in %s", startTimeout)
}

// churn changes objects and counts.
func (b *bench) churn(ctx context.Context, clients []*client) error {
	for _, c := range clients {
		c.before = c.traffic()
		var err error
		if c.cpu, err = cpuTime(c.pid); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	begin := time.Now()
	if err := b.change(ctx); err != nil {
		return err
	}
	b.report.churned = time.Since(begin)
	if err := pause(ctx, time.Second); err != nil { // the last events are on their way
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

// fillCost fills the bill of a client; one that has ended meanwhile has none.
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
	cpu, err := cpuTime(c.pid)
	m, err2 := memoryOf(c.pid)
	if err := errors.Join(c.ended(), err, err2); err != nil {
		c.cost.skipped = err.Error()
		return
	}
	c.cost.cpu, c.cost.mib = cpu-c.cpu, m.now
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
func (b *bench) change(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(churnWorkers)
	made, late := 0, 0
	random := rand.New(rand.NewPCG(2, 0))
	services, slices := append(b.services(false), b.services(true)...), b.slices()
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
func (b *bench) changeService(ctx context.Context, s *corev1.Service, i int) error {
	patch := fmt.Sprintf(`[{"op":"replace","path":"/spec/ports/1/port","value":%d}]`, 10_000+i%50_000)
	_, err := b.cluster.Client().CoreV1().Services(s.Namespace).
		Patch(ctx, s.Name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("changing a service: %w", err)
	}
	return nil
}

// changeSlice makes an endpoint unready, or at the next turn ready again: a patch that changes nothing is no event.
func (b *bench) changeSlice(ctx context.Context, s *discoveryv1.EndpointSlice, turn int) error {
	patch := fmt.Sprintf(`[{"op":"replace","path":"/endpoints/%d/conditions/ready","value":%t}]`, turn/2%len(s.Endpoints), turn%2 == 1)
	_, err := b.cluster.Client().DiscoveryV1().EndpointSlices(s.Namespace).
		Patch(ctx, s.Name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("changing a slice: %w", err)
	}
	return nil
}

// slices are the EndpointSlices of the cluster.
func (b *bench) slices() []*discoveryv1.EndpointSlice {
	var found []*discoveryv1.EndpointSlice
	for _, o := range b.objects {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok {
			found = append(found, s)
		}
	}
	return found
}

// fillSlices gives each service with an address a few endpoints, as those of a real cluster have.
func (b *bench) fillSlices(ctx context.Context) error {
	services := b.services(false)
	added := make([]runtime.Object, 0, len(services))
	for i, s := range services {
		added = append(added, smallSlice(s, i))
	}
	b.objects = append(b.objects, added...)
	return b.cluster.Load(ctx, added...)
}

func smallSlice(s *corev1.Service, i int) *discoveryv1.EndpointSlice {
	yes, no := true, false
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: s.Name + "-0",
			Labels: map[string]string{
				"app": s.Name, discoveryv1.LabelServiceName: s.Name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
			},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, p := range s.Spec.Ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol})
	}
	for n := range smallSet {
		number := i*smallSet + n
		node, zone := fmt.Sprintf("node-%d", number%1000), fmt.Sprintf("zone-%d", number%3)
		address := netip.AddrFrom4([4]byte{10, 192 + byte(number>>16), byte(number >> 8), byte(number)})
		name := fmt.Sprintf("%s-%d", s.Name, n)
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{address.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			NodeName:   &node, Zone: &zone,
			TargetRef: &corev1.ObjectReference{
				Kind: "Pod", Namespace: s.Namespace, Name: name, UID: types.UID(fmt.Sprintf("00000000-0000-4000-9000-%012d", number)),
			},
		})
	}
	return slice
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/pkg/retry"
)

const (
	absent  = time.Second     // how long a deleted Service is away
	settled = 5 * time.Second // at least, between two changes of a Service
)

// A fleetService is a Service whose name agents hold.
type fleetService struct {
	*fleetName

	service *corev1.Service
	slice   *discoveryv1.EndpointSlice // the first of a headless one; nil: it has an address
	latest  time.Time                  // change

	changing sync.Mutex // held during a change
	gone     bool
}

func newFleetService(s *corev1.Service, slice *discoveryv1.EndpointSlice) *fleetService {
	f := &fleetService{fleetName: newFleetName(nameOf(*s) + "."), service: s, slice: slice}
	f.want = right4(f.address())
	return f
}

// dns is the name with a dot at its end.
func (s *fleetService) dns() string { return nameOf(*s.service) + "." }

// address is the Service's address, or that of its first endpoint.
func (s *fleetService) address() string {
	if s.slice != nil {
		return s.slice.Endpoints[0].Addresses[0]
	}
	return s.service.Spec.ClusterIP
}

// right4 is an IPv4 address in a record: its length and its bytes.
func right4(address string) string {
	return "\x00\x04" + string(netip.MustParseAddr(address).AsSlice())
}

// newSeeded gives the same numbers in each run.
func newSeeded(seed int) *rand.Rand { return rand.New(rand.NewPCG(5, uint64(seed))) }

// fill loads the objects: those of a large cluster, of the resolvers, and of the name that all agents hold.
func (b *fleetBench) fill(ctx context.Context) error {
	begin := time.Now()
	headless := b.opts.services / headlessShare
	objects := kubetest.Large(b.opts.services-headless, headless, b.opts.endpoints/headless)
	first := map[string]*discoveryv1.EndpointSlice{} // by Service
	for _, s := range pick[*discoveryv1.EndpointSlice](objects) {
		if name := s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]; first[name] == nil {
			first[name] = s
		}
	}
	for _, s := range pick[*corev1.Service](objects) {
		if s.Spec.ClusterIP != corev1.ClusterIPNone {
			s.Spec.ClusterIP = b.newAddress()
		}
		b.ranked = append(b.ranked, newFleetService(s, first[s.Namespace+"/"+s.Name]))
	}
	newSeeded(0).Shuffle(len(b.ranked), func(i, j int) { b.ranked[i], b.ranked[j] = b.ranked[j], b.ranked[i] })
	service := fleetObject("everyone", corev1.ClusterIPNone)
	b.everyone = newFleetService(service, kubetest.Slice(service, smallFirst, 0, 1, false))
	b.ranked = append([]*fleetService{b.everyone}, b.ranked...)
	own := append(b.resolverObjects(), b.everyone.service, b.everyone.slice)
	for _, batch := range [][]runtime.Object{{kubetest.Namespace(eventNamespace), admins(b.users())}, own, objects} {
		if err := b.cluster.Load(ctx, batch...); err != nil {
			return err
		}
	}
	printf(b.progress, "%d objects loaded in %s\n", len(objects), time.Since(begin).Round(time.Second))
	return nil
}

func fleetObject(name, clusterIP string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: eventNamespace, Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: clusterIP, Ports: []corev1.ServicePort{{Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP}}},
	}
}

// resolverObjects are the central Service and a slice for each resolver: they differ in their ports.
func (b *fleetBench) resolverObjects() []runtime.Object {
	service := fleetObject("resolver", b.newAddress())
	objects := append(make([]runtime.Object, 0, 1+len(b.resolvers)), service)
	for i, p := range b.resolvers {
		slice := kubetest.Slice(service, smallFirst, 0, 1, false)
		port := int32(p.at.Port)
		slice.Name, slice.Ports[0].Port = fmt.Sprintf("resolver-%d", i), &port
		slice.Endpoints[0].Addresses = []string{b.address}
		objects = append(objects, slice)
	}
	return objects
}

// newAddress returns an address of the range of Services that the API server has not seen.
func (b *fleetBench) newAddress() string {
	b.added++
	return netip.AddrFrom4([4]byte{10, 97 + byte(b.added>>16), byte(b.added >> 8), byte(b.added)}).String()
}

// someNames draws Services by Zipf's law, the name that all agents hold first.
func (b *fleetBench) someNames(random *rand.Rand, most int) []*fleetService {
	drawn, names := map[int]struct{}{0: {}}, []*fleetService{b.everyone}
	for law := newZipf(random, len(b.ranked)); len(names) < min(most, len(b.ranked)/2); {
		rank := law.rank()
		if _, ok := drawn[rank]; !ok {
			drawn[rank] = struct{}{}
			names = append(names, b.ranked[rank])
		}
	}
	return names
}

// change changes a Service: a headless one gets another endpoint instead of its first; another one is deleted, or created again with
// another address.
func (b *fleetBench) change(ctx context.Context, s *fleetService, address string, add func(rightAnswer)) (err error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	services := b.cluster.Client().CoreV1().Services(s.service.Namespace)
	switch {
	case s.slice != nil:
		s.slice.Endpoints[0].Addresses = []string{address}
		s.expect(right4(address), add)
		_, err = b.cluster.Client().DiscoveryV1().EndpointSlices(s.slice.Namespace).Update(ctx, s.slice, metav1.UpdateOptions{})
	case s.gone:
		s.service.Spec.ClusterIP = address
		s.expect(right4(address), add)
		_, err = services.Create(ctx, s.service, metav1.CreateOptions{})
		s.gone = false
	default:
		s.expect("", add)
		err = services.Delete(ctx, s.service.Name, metav1.DeleteOptions{})
		s.gone = true
	}
	if err != nil {
		return fmt.Errorf("changing %s: %w", strings.TrimSuffix(s.dns(), "."), err)
	}
	s.written(time.Now())
	return nil
}

// churn makes changes at an even rate, each of a Service picked at random. A deleted one comes back a second later.
func (b *fleetBench) churn(ctx context.Context, c *fleetStep) error {
	var mu sync.Mutex
	add := func(r rightAnswer) {
		mu.Lock()
		defer mu.Unlock()
		c.fresh.latencies, c.watch.latencies = append(c.fresh.latencies, r.reply), append(c.watch.latencies, r.watch)
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	if err := b.follow(watching); err != nil {
		return err
	}
	random := newSeeded(1)
	var gone []*fleetService
	group, changing := errgroup.WithContext(ctx)
	group.SetLimit(churnWorkers)
	during, cancel := context.WithTimeout(changing, b.opts.churn)
	defer cancel()
	_ = every(during, time.Second/time.Duration(b.opts.rate), func() error { // which returns no error
		s, now := b.due(random, &gone), time.Now()
		if s == nil {
			return nil
		}
		address := b.newAddress()
		s.latest = now
		c.changes++
		c.expected += len(s.holders)
		group.Go(func() error { return b.change(changing, s, address, add) })
		return nil
	})
	if err := retry.Sleep(ctx, absent); err != nil { // else the denial of a Service that was just deleted is never asked for
		return errors.Join(err, group.Wait())
	}
	for _, s := range gone {
		address := b.newAddress()
		group.Go(func() error { return b.change(changing, s, address, nil) })
	}
	return group.Wait()
}

// follow has a watch of this program, which does nothing else, note when it has each change.
func (b *fleetBench) follow(ctx context.Context) error {
	list, err := b.cluster.Client().CoreV1().Services("").List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return fmt.Errorf("reading the version to watch from: %w", err)
	}
	from := metav1.ListOptions{ResourceVersion: list.ResourceVersion}
	services, err1 := b.cluster.Client().CoreV1().Services("").Watch(ctx, from)
	slices, err2 := b.cluster.Client().DiscoveryV1().EndpointSlices("").Watch(ctx, from)
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("watching: %w", err)
	}
	named := make(map[string]*fleetService, len(b.ranked))
	for _, s := range b.ranked {
		named[s.service.Namespace+"/"+s.service.Name] = s
	}
	for _, w := range []watch.Interface{services, slices} {
		go func() { // ends with ctx
			for e := range w.ResultChan() {
				o, err := meta.Accessor(e.Object)
				if err != nil {
					continue
				}
				if s := named[o.GetNamespace()+"/"+cmp.Or(o.GetLabels()[discoveryv1.LabelServiceName], o.GetName())]; s != nil {
					s.seen(time.Now())
				}
			}
		}()
	}
	return nil
}

// due returns the Service to change next, nil if all were changed lately.
func (b *fleetBench) due(random *rand.Rand, gone *[]*fleetService) *fleetService {
	now := time.Now()
	if len(*gone) > 0 && now.Sub((*gone)[0].latest) >= absent {
		s := (*gone)[0]
		*gone = (*gone)[1:]
		return s
	}
	for range 100 {
		if s := b.ranked[1+random.IntN(len(b.ranked)-1)]; now.Sub(s.latest) >= settled {
			if s.slice == nil {
				*gone = append(*gone, s)
			}
			return s
		}
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// One service in so many is headless, with endpoints of its own.
const (
	headlessShare = 11
	endpointsPer  = 100
)

// A clusterBench is one run of the section cluster.
type clusterBench struct {
	*harness

	opts    options
	cluster *kubetest.Cluster
	objects []runtime.Object // what the cluster holds
	report  *clusterReport
}

// measureCluster runs every part and returns what they found.
func measureCluster(ctx context.Context, opts options, progress io.Writer) (report, error) {
	var err error
	if opts.nodeCache, err = proctest.LookProgram(opts.nodeCache); err != nil {
		return nil, fmt.Errorf("%w (make build)", err)
	}
	h, err := newHarness(opts.seconds, progress)
	if err != nil {
		return nil, err
	}
	defer h.close()
	b := &clusterBench{harness: h, opts: opts, report: newClusterReport(opts)}
	if err := b.launch(ctx); err != nil {
		return nil, err
	}
	defer b.cluster.Close()
	if err := b.serve(ctx); err != nil {
		return nil, err
	}
	if opts.churn > 0 {
		if err := b.cost(ctx); err != nil {
			return nil, err
		}
	}
	b.report.Machine.Generator = h.generator
	return b.report, nil
}

// launch starts the control plane, fills it, and gives the first CPU to the servers alone.
func (b *clusterBench) launch(ctx context.Context) error {
	printf(b.progress, "building the control plane and CoreDNS: minutes the first time\n")
	state := filepath.Join(b.dir, "cluster")
	if err := os.Mkdir(state, 0o700); err != nil {
		return fmt.Errorf("creating a folder: %w", err)
	}
	var users []string
	for _, c := range contenders() {
		if c.user != kubetest.Admin {
			users = append(users, c.user)
		}
	}
	var err error
	b.cluster, err = kubetest.Launch(ctx, kubetest.Options{Dir: state, Users: users, Audit: true})
	if err != nil {
		return err
	}
	if err := b.fill(ctx, users); err != nil {
		b.cluster.Close()
		return err
	}
	return nil
}

// fill loads the objects, writes the lists of queries, and pins what is not under test.
func (b *clusterBench) fill(ctx context.Context, users []string) error {
	begin := time.Now()
	headless := b.opts.services / headlessShare
	b.objects = kubetest.Large(b.opts.services-headless, headless, endpointsPer)
	for _, batch := range [][]runtime.Object{{kubetest.Namespace(eventNamespace), admins(users)}, b.objects} {
		if err := b.cluster.Load(ctx, batch...); err != nil {
			return err
		}
	}
	printf(b.progress, "%d objects loaded in %s\n", len(b.objects), time.Since(begin).Round(time.Second))
	list, err := b.cluster.Client().CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing services: %w", err)
	}
	if err := writeLists(b.dir, list.Items); err != nil {
		return err
	}
	return pinTree(os.Getpid(), otherCPU)
}

// admins lets the contenders read everything, as each of their own roles does for what it reads.
func admins(users []string) *rbacv1.ClusterRoleBinding {
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}
	for _, user := range users {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user})
	}
	return binding
}

// pinTree restricts a process and its children to one CPU.
func pinTree(pid, cpu int) error {
	var one unix.CPUSet
	one.Set(cpu)
	for i, process := range proctest.Tree(pid) {
		if err := proctest.Pin(process, &one); err != nil && i == 0 { // a child may have ended
			return err
		}
	}
	return nil
}

// serve measures the floor and then every server of the zone, in rounds.
func (b *clusterBench) serve(ctx context.Context) error {
	floor := server{name: floorName, args: floorArgs}
	var err error
	if floor.path, err = b.compile(ctx, floorName, floorSource); err != nil {
		return err
	}
	for round := range b.opts.rounds {
		if err := b.measureFloor(ctx, round, floor); err != nil { // without it there are no ratios
			b.note(b.report.find(floorName), round, "", err)
		}
		for _, c := range b.chosen() {
			if c.apart == costOnly {
				continue
			}
			if err := b.trial(ctx, round, c, b.report.row(c)); err != nil {
				b.note(b.report.find(c.name), round, "", err)
			}
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("measuring: %w", err)
			}
		}
	}
	return nil
}

// measureFloor puts the first load on the floor.
func (b *clusterBench) measureFloor(ctx context.Context, round int, floor server) error {
	at, err := b.place(ctx, floor, site{})
	if err != nil {
		return err
	}
	p, err := b.start(ctx, floor, at)
	if err != nil {
		return err
	}
	defer p.Stop(grace)
	if err := b.awaitAnswer(ctx, p, at.Port, domain); err != nil {
		return err
	}
	s, err := b.runLoad(ctx, p, clusterLoads()[0], at.Port)
	if err := errors.Join(err, ctx.Err(), ended(p)); err != nil {
		return err
	}
	b.sample(b.report.find(floorName), round, addressLoad, s)
	return nil
}

// chosen are the contenders of this run.
func (b *clusterBench) chosen() []contender {
	return slices.DeleteFunc(contenders(), func(c contender) bool {
		return len(b.opts.only) > 0 && !slices.Contains(b.opts.only, c.name)
	})
}

// services are the cluster's services, with or without an address of their own.
func (b *clusterBench) services(headless bool) []*corev1.Service {
	return slices.DeleteFunc(pick[*corev1.Service](b.objects), func(s *corev1.Service) bool {
		return (s.Spec.ClusterIP == corev1.ClusterIPNone) != headless
	})
}

// pick returns the objects of one kind.
func pick[O runtime.Object](objects []runtime.Object) []O {
	var found []O
	for _, o := range objects {
		if o, ok := o.(O); ok {
			found = append(found, o)
		}
	}
	return found
}

// A contender is a server of the cluster zone that is measured.
type contender struct {
	server

	endpoints string // cluster.endpoints, of node-cache
	user      string // as whom it asks the API server
	ours      bool
	ready     string // path of the URL that answers 200 once it is ready
	apart     string // part of the run in which it runs; empty: all
}

// The parts of the run: the servers one by one, and the API server's traffic.
const (
	serveOnly = "serve"
	costOnly  = "cost"
)

// kubeProxyName is also how kube-proxy calls itself to the API server.
const kubeProxyName = "kube-proxy"

// contenders returns every one, in the order in which they run and are reported.
func contenders() []contender {
	ours := func(name, command, endpoints, apart string) contender {
		return contender{
			server:    server{name: name, config: "node-cache-cluster.yaml", args: command + " --config {{.Conf}}"},
			endpoints: endpoints, user: "bench-" + command + "-" + endpoints, ours: true, ready: "/readyz", apart: apart,
		}
	}
	return []contender{
		ours("agent-headless", "agent", "headless", ""),
		ours("agent-all", "agent", "all", ""),
		ours("resolver-headless", "resolver", "headless", serveOnly),
		ours("resolver-all", "resolver", "all", serveOnly),
		{server: server{name: "coredns", config: "Corefile-cluster", args: "-quiet -conf {{.Conf}}"}, user: "bench-coredns", ready: "/ready"},
		{server: server{name: kubeProxyName}, user: kubetest.Admin, apart: costOnly}, // kubetest starts it
	}
}

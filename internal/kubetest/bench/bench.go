// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nodecache/node-cache/internal/kubetest"
)

// One service in so many is headless, with endpoints of its own.
const (
	headlessShare = 11
	endpointsPer  = 100
)

// A bench is one run: what every part of it shares.
type bench struct {
	opts     options
	dir      string // removed at the end
	progress io.Writer
	programs kubetest.Programs
	cluster  *kubetest.Cluster
	objects  []runtime.Object // what the cluster holds
	starts   int              // servers started so far, for the names of their folders
	report   report
}

// measure runs every part and returns what they found.
func measure(ctx context.Context, opts options, progress io.Writer) (report, error) {
	if err := needTwoCPUs(); err != nil {
		return report{}, err
	}
	if _, err := findProgram("dnsperf"); err != nil {
		return report{}, fmt.Errorf("looking for dnsperf: %w (on Debian: apt-get install dnsperf)", err)
	}
	var err error
	if opts.nodeCache, err = findProgram(opts.nodeCache); err != nil {
		return report{}, fmt.Errorf("looking for node-cache: %w (make build)", err)
	}
	dir, err := os.MkdirTemp("", "cluster-bench-")
	if err != nil {
		return report{}, fmt.Errorf("creating a folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	b := &bench{opts: opts, dir: dir, progress: progress}
	b.report = newReport(opts)
	if err := b.launch(ctx); err != nil {
		return report{}, err
	}
	defer b.cluster.Close()
	if err := b.serve(ctx); err != nil {
		return report{}, err
	}
	if opts.churn > 0 {
		if err := b.cost(ctx); err != nil {
			return report{}, err
		}
	}
	return b.report, nil
}

// launch starts the control plane, fills it, and gives the first CPU to the servers alone.
func (b *bench) launch(ctx context.Context) error {
	printf(b.progress, "building the control plane and CoreDNS: minutes the first time\n")
	var err error
	if b.programs, err = kubetest.Build(ctx); err != nil {
		return err
	}
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
	b.cluster, err = kubetest.Launch(ctx, kubetest.Options{Programs: b.programs, Dir: state, Users: users, Audit: true})
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
func (b *bench) fill(ctx context.Context, users []string) error {
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

// serve measures the floor and then every server of the zone, in rounds.
func (b *bench) serve(ctx context.Context) error {
	floor, err := b.buildFloor(ctx)
	if err != nil {
		return err
	}
	for round := range b.opts.rounds {
		if err := b.measureFloor(ctx, floor); err != nil { // without it there are no ratios
			printf(b.progress, "round %d %v\n", round+1, err)
		}
		for _, c := range b.chosen() {
			if c.apart == costOnly {
				continue
			}
			b.trial(ctx, round, c)
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("measuring: %w", err)
			}
		}
	}
	return nil
}

// chosen are the contenders of this run.
func (b *bench) chosen() []contender {
	return slices.DeleteFunc(contenders(), func(c contender) bool {
		return len(b.opts.only) > 0 && !slices.Contains(b.opts.only, c.name)
	})
}

// services are the cluster's services, with or without an address of their own.
func (b *bench) services(headless bool) []*corev1.Service {
	var found []*corev1.Service
	for _, o := range b.objects {
		if s, ok := o.(*corev1.Service); ok && (s.Spec.ClusterIP == corev1.ClusterIPNone) == headless {
			found = append(found, s)
		}
	}
	return found
}

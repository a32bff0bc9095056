// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodecache/node-cache/internal/kubetest"
)

const domain = "cluster.local"

// The names of the loads that the budgets speak of; the first is also the floor's.
const (
	addressLoad = "address"
	denialLoad  = "denial"
)

// clusterLoads returns every load of the section cluster, in the order in which they run.
func clusterLoads() []load {
	all := []load{
		{name: addressLoad, title: "A of a service", rcode: "NOERROR"},
		{name: denialLoad, title: "denial", rcode: "NXDOMAIN"},
		{name: "srv", title: "SRV of a service", rcode: "NOERROR"},
		{name: "ptr", title: "PTR of a service", rcode: "NOERROR"},
		{name: "endpoint", title: "A of an endpoint", rcode: "NOERROR"},
		{name: "headless", title: "A of 100 endpoints, UDP", rcode: "NOERROR"},
		{name: "headless-tcp", title: "A of 100 endpoints, TCP", rcode: "NOERROR", tcp: true},
	}
	for i := range all {
		all[i].list = all[i].name
	}
	return all
}

// writeLists writes a file of queries for each load. The same services give the same lists.
func writeLists(dir string, services []corev1.Service) error {
	var clustered, headless []corev1.Service
	for i := range services {
		switch s := services[i]; {
		case strings.HasPrefix(s.Name, "cluster-"):
			clustered = append(clustered, s)
		case strings.HasPrefix(s.Name, "headless-"):
			headless = append(headless, s)
		}
	}
	if len(clustered) == 0 || len(headless) == 0 {
		return errors.New("writing lists: the cluster lacks services of one kind")
	}
	slices.SortFunc(clustered, byNumber)
	slices.SortFunc(headless, byNumber)
	random := rand.New(rand.NewPCG(1, 0))
	l := lister{random: random, clustered: clustered, headless: headless, zipf: newZipf(random, len(clustered))}
	for _, load := range clusterLoads() {
		if err := writeList(dir, load.list, zipfLines, func(int) string { return l.line(load.name) }); err != nil {
			return err
		}
	}
	return nil
}

// byNumber orders services by the number at the end of their names.
func byNumber(a, b corev1.Service) int { return cmp.Compare(number(a.Name), number(b.Name)) }

func number(name string) int {
	n, _ := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:]) // 0 is as good an order
	return n
}

func nameOf(s corev1.Service) string { return s.Name + "." + s.Namespace + ".svc." + domain }

// A lister makes queries.
type lister struct {
	random              *rand.Rand
	clustered, headless []corev1.Service
	asked               int    // denials so far
	external            string // asked behind each search suffix in turn
	zipf                *zipf  // over clustered
}

// line is one query of a load.
func (l *lister) line(load string) string {
	switch load {
	case addressLoad:
		return nameOf(l.skewed()) + " A"
	case denialLoad:
		return l.denial()
	case "srv":
		return "_http._tcp." + nameOf(l.skewed()) + " SRV"
	case "ptr":
		return l.pointer()
	case "endpoint":
		return l.endpoint()
	default: // the sets, over either transport
		return nameOf(l.set()) + " A"
	}
}

// skewed is a service with an address by Zipf's law.
func (l *lister) skewed() corev1.Service { return l.clustered[l.zipf.rank()] }

// set is any headless service.
func (l *lister) set() corev1.Service { return l.headless[l.random.IntN(len(l.headless))] }

// denial asks for an external name behind each suffix of a pod's search list in turn.
func (l *lister) denial() string {
	suffixes := []string{".default.svc.", ".svc.", "."}
	if l.asked%len(suffixes) == 0 {
		l.external = external(l.random.IntN(externals))
	}
	suffix := suffixes[l.asked%len(suffixes)]
	l.asked++
	return l.external + suffix + domain + " A"
}

// pointer asks for the name of a service's address.
func (l *lister) pointer() string {
	reverse, err := dns.ReverseAddr(l.skewed().Spec.ClusterIP)
	if err != nil {
		return ". PTR" // answered with another response code, so counted as wrong
	}
	return strings.TrimSuffix(reverse, ".") + " PTR"
}

// endpoint asks for a name of its own; those of services with an even number have a hostname, the others are named
// by their address.
func (l *lister) endpoint() string {
	s := l.set()
	i, n := number(s.Name), l.random.IntN(endpointsPer)
	label := fmt.Sprintf("%s-%d", s.Name, n)
	if i%2 == 1 {
		label = strings.ReplaceAll(kubetest.EndpointAddr(i*endpointsPer+n).String(), ".", "-")
	}
	return label + "." + nameOf(s) + " A"
}

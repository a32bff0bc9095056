// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/nodecache/node-cache/pkg/watch"
	"github.com/nodecache/node-cache/pkg/zone"
)

// A Problem is something that is wrong now and that somebody should see to.
type Problem struct {
	Where string `json:"where"` // a part of the configuration, or a kind of objects
	What  string `json:"what"`
	Hint  string `json:"hint"`
}

// problems lists what is wrong, the configuration first, because the rest may
// follow from it.
func problems(r *running, told *watch.Stats, s *Status) []Problem {
	var list []Problem
	list = append(list, sourceProblems(&s.Config)...)
	for _, route := range r.routes {
		if route.pool.Empty() {
			list = append(list, Problem{
				Where: "forward " + route.Zone, What: "there is no upstream to ask",
				Hint: "name a server in the resolv.conf, or in the configuration",
			})
		}
	}
	for i := range s.Upstreams {
		u := &s.Upstreams[i]
		list = append(list, serverProblems(u.where(), []ServerStatus{u.ServerStatus})...)
	}
	list = append(list, staticProblems(s.Static)...)
	list = append(list, snapshotProblems(s.Snapshot)...)
	list = append(list, nodeProblems(s.Node)...)
	if s.Cluster == nil {
		return list
	}
	if r.config.Cluster.Manifests != "" { // what is wrong there stands among the manifests' problems
		told = &watch.Stats{}
	}
	for i := range told.Kinds {
		if p, ok := kindProblem(&told.Kinds[i], r.config.Cluster.StaleAfter); ok {
			list = append(list, p)
		}
	}
	for i := range s.Cluster.Kinds {
		if k := &s.Cluster.Kinds[i]; k.Refused > 0 {
			list = append(list, oversizeProblem(k))
		}
	}
	if bad := s.Cluster.Manifests; len(bad) > 0 {
		list = append(list, Problem{
			Where: "cluster.manifests", What: fmt.Sprintf("%s, the first in %s: %s", count(len(bad), "problem"), cmp.Or(bad[0].File, "the folder itself"), bad[0].What),
			Hint: "mend the files; cluster.manifestProblems has them all. The rest is served",
		})
	}
	if p, ok := centralProblem(s.Cluster.Central, told); ok {
		list = append(list, p)
	}
	if c := s.Cluster.Central; c != nil {
		list = append(list, serverProblems("cluster.central", c.Endpoints)...)
	}
	return list
}

// kindProblem says what is wrong with the view of a kind, if something is.
func kindProblem(k *watch.KindStats, staleAfter time.Duration) (Problem, bool) {
	p := Problem{Where: zone.Kinds()[k.Kind], Hint: apiHint(k.LastError, resource(k.Kind))}
	switch {
	case !k.Synced:
		p.What = "not in sync: " + cmp.Or(k.LastError, "nothing was heard yet")
	case k.Age > staleAfter:
		p.What = fmt.Sprintf("not confirmed for %s: %s", k.Age.Round(time.Second), cmp.Or(k.LastError, "nothing was heard"))
	case k.LastError != "":
		p.What = k.LastError
	default:
		return Problem{}, false
	}
	return p, true
}

// oversizeProblem says which objects are more than their namespace may have.
func oversizeProblem(k *KindStatus) Problem {
	return Problem{
		Where: k.Kind,
		What:  fmt.Sprintf("%s refused, the last is %s: one namespace may take a %dth of the Go runtime's limit", count(int(k.Refused), "object"), k.Last, namespacePart),
		Hint:  "see whether that namespace needs so many; if it does, raise the container's memory limit",
	}
}

// centralProblem says what is wrong with the central resolver, if something is.
func centralProblem(c *CentralStatus, told *watch.Stats) (Problem, bool) {
	if c == nil {
		return Problem{}, false
	}
	p := Problem{Where: "cluster.central"}
	switch {
	case !c.InSync:
		p.What = fmt.Sprintf("the endpoints of %s are not known: %s", c.Service, cmp.Or(told.ServiceWatch.LastError, "nothing was heard yet"))
		p.Hint = apiHint(told.ServiceWatch.LastError, "services and endpointslices.discovery.k8s.io")
	case len(c.Endpoints) == 0:
		p.What = fmt.Sprintf("%s has no ready endpoint and no address", c.Service)
		p.Hint = "see that the service exists, has a port 53 for TCP, and that its pods are ready"
	case c.Service != "" && c.Endpoints[0].Last: // those that are ready come first
		p.What = fmt.Sprintf("no endpoint of %s is ready: its own address is asked", c.Service)
		p.Hint = "see that the service's pods are ready"
	case told.ServiceWatch.LastError != "":
		p.What = told.ServiceWatch.LastError
		p.Hint = apiHint(told.ServiceWatch.LastError, "services and endpointslices.discovery.k8s.io")
	default:
		return Problem{}, false
	}
	return p, true
}

// resource is what RBAC calls a kind.
func resource(k zone.Kind) string {
	switch k {
	case zone.Services:
		return "services"
	case zone.Slices:
		return "endpointslices.discovery.k8s.io"
	case zone.Namespaces:
		return "namespaces"
	default:
		return "pods"
	}
}

// apiHint is what can be done about a source that gave this error, if any.
func apiHint(err, resources string) string {
	reason, _, _ := strings.Cut(err, ":")
	switch reason {
	case "forbidden":
		return "grant list and watch of " + resources + " to this process"
	case "unauthorized":
		return "the credentials were refused: see the service account, or the kubeconfig"
	case "", "unreachable", "frozen":
		return "see that the API server can be reached from here; it is asked again by itself"
	case "internal":
		return "a defect: the log has its stack"
	default:
		return "see how the API server is doing; it is asked again by itself"
	}
}

// count is a number of things in words.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

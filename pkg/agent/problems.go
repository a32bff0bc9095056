// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"time"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/watch"
	"github.com/nodecache/node-cache/pkg/zone"
)

// A HintError is an error and what the operator can do about it.
type HintError struct {
	Err  error
	Hint string
}

// Error returns the text of Err.
func (e *HintError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *HintError) Unwrap() error { return e.Err }

// listenProblem adds a hint to an error of opening a socket.
func listenProblem(err error, port uint16) error {
	hint := ""
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		hint = "another program uses the port: find it with `ss -lnptu`, or set another listen.port or listen.addresses"
	case errors.Is(err, syscall.EACCES) && port < 1024:
		hint = "ports below 1024 need root or the capability NET_BIND_SERVICE"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		hint = "this host forbids the socket: check its seccomp, LSM, and cgroup rules"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		hint = "no interface of this host has the address; list the addresses with `ip address`"
	case errors.Is(err, syscall.EAFNOSUPPORT):
		hint = "this host does not support that IP family"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		hint = "raise the limit of open files (ulimit -n)"
	default:
		return err
	}
	return &HintError{Err: err, Hint: hint}
}

// adminProblem adds a hint to an error of the admin server's sockets.
func adminProblem(err error, cfg config.Admin) error {
	switch {
	case cfg.Socket == "":
	case errors.Is(err, admin.ErrSocketTaken):
		return &HintError{Err: err, Hint: "another agent uses this admin.socket: set a different path for each agent"}
	case errors.Is(err, fs.ErrNotExist):
		return &HintError{Err: err, Hint: "the folder of admin.socket does not exist: create it, or set another path"}
	case errors.Is(err, admin.ErrNoSocket):
		return &HintError{Err: err, Hint: "admin.socket exists and is no socket: remove that file, or set another path"}
	}
	return listenProblem(err, cfg.Address.Port())
}

// A Problem is something wrong that the operator should fix.
type Problem struct {
	Where string `json:"where"` // a configuration key, or a kind of objects
	What  string `json:"what"`
	Hint  string `json:"hint"`
}

// problems lists what is wrong, the configuration first, because other problems may follow from it.
func problems(r *generation, stats *watch.Stats, s *Status) []Problem {
	var list []Problem
	list = append(list, sourceProblems(&s.Config)...)
	for _, route := range r.routes {
		if route.pool.Empty() {
			list = append(list, Problem{
				Where: "forward " + route.Zone, What: "no upstream is configured",
				Hint: "add a nameserver to the resolv.conf, or an upstream to the configuration",
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
	if r.config.Cluster.Manifests != "" { // the manifests' problems include these
		stats = &watch.Stats{}
	}
	for i := range stats.Kinds {
		if p, ok := kindProblem(&stats.Kinds[i], r.config.Cluster.StaleAfter); ok {
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
			Hint: "fix the files listed in cluster.manifestProblems; all other objects are served",
		})
	}
	if p, ok := centralProblem(s.Cluster.Central, stats); ok {
		list = append(list, p)
	}
	if c := s.Cluster.Central; c != nil {
		list = append(list, serverProblems("cluster.central", c.Endpoints)...)
	}
	return list
}

// kindProblem reports a kind that is not synced or not fresh.
func kindProblem(k *watch.KindStats, staleAfter time.Duration) (Problem, bool) {
	p := Problem{Where: zone.Kinds()[k.Kind], Hint: apiHint(k.LastError, resource(k.Kind))}
	switch {
	case !k.Synced:
		p.What = "not synced: " + cmp.Or(k.LastError, "no response yet")
	case k.Age > staleAfter:
		p.What = fmt.Sprintf("not confirmed fresh for %s: %s", k.Age.Round(time.Second), cmp.Or(k.LastError, "no response"))
	case k.LastError != "":
		p.What = k.LastError
	default:
		return Problem{}, false
	}
	return p, true
}

// oversizeProblem reports objects over their namespace's memory limit.
func oversizeProblem(k *KindStatus) Problem {
	return Problem{
		Where: k.Kind,
		What:  fmt.Sprintf("%s refused, the last is %s: a namespace may use 1/%d of the Go runtime's memory limit", count(int(k.Refused), "object"), k.Last, namespacePart),
		Hint:  "check whether that namespace needs so many objects; if so, raise the container's memory limit",
	}
}

// centralProblem reports what is wrong with the central resolver.
func centralProblem(c *CentralStatus, stats *watch.Stats) (Problem, bool) {
	if c == nil {
		return Problem{}, false
	}
	p := Problem{Where: "cluster.central"}
	switch {
	case !c.InSync:
		p.What = fmt.Sprintf("the endpoints of %s are unknown: %s", c.Service, cmp.Or(stats.ServiceWatch.LastError, "no response yet"))
		p.Hint = apiHint(stats.ServiceWatch.LastError, "services and endpointslices.discovery.k8s.io")
	case len(c.Endpoints) == 0:
		p.What = fmt.Sprintf("%s has no ready endpoint and no address", c.Service)
		p.Hint = "check that the service exists, has TCP port 53, and has ready pods"
	case c.Service != "" && c.Endpoints[0].Last: // ready servers come first
		p.What = fmt.Sprintf("no endpoint of %s is ready: queries go to its cluster IP", c.Service)
		p.Hint = "check that the service's pods are ready"
	case stats.ServiceWatch.LastError != "":
		p.What = stats.ServiceWatch.LastError
		p.Hint = apiHint(stats.ServiceWatch.LastError, "services and endpointslices.discovery.k8s.io")
	default:
		return Problem{}, false
	}
	return p, true
}

// resource returns the RBAC name of a kind.
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

// apiHint returns what to do about an error of the cluster's source.
func apiHint(err, resources string) string {
	reason, _, _ := strings.Cut(err, ":")
	switch reason {
	case "forbidden":
		return "grant this process list and watch of " + resources
	case "unauthorized":
		return "the API server refused the credentials: check the service account or the kubeconfig"
	case "", "unreachable", "frozen":
		return "check that the API server is reachable from this pod; the agent retries by itself"
	case "internal":
		return "this is a bug: report it with the stack trace in the log"
	default:
		return "check the API server's health; the agent retries by itself"
	}
}

// count formats a number of things.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

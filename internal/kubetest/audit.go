// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// The files of the audit log, in the cluster's folder.
const (
	auditPolicyFile = "audit-policy.yaml"
	auditFile       = "audit.log"
)

// A Request is one request that the API server saw.
type Request struct {
	Time     time.Time // when it arrived
	User     string
	Agent    string // the program: the User-Agent header up to its first slash
	Verb     string // get, list, watch, create …
	Resource string // with the subresource: services, pods/status; empty for paths such as /readyz
	Code     int    // HTTP status
}

// writeAuditPolicy asks for one line about each request without its body, and for watches already when they begin.
func writeAuditPolicy(path string) error {
	const policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n"
	if err := os.WriteFile(path, []byte(policy), 0o600); err != nil {
		return fmt.Errorf("writing an audit policy: %w", err)
	}
	return nil
}

// Audit returns the requests so far in the order of their arrival, the API server's own among them. A request whose
// answer has arrived at its client is there, and so is a watch that has begun to answer.
func (c *Cluster) Audit() ([]Request, error) {
	if !c.options.Audit {
		return nil, errors.New("reading the audit log: the cluster has none")
	}
	text, err := os.ReadFile(c.path(auditFile))
	if err != nil {
		return nil, fmt.Errorf("reading the audit log: %w", err)
	}
	// A line without its end is still being written, or was when the API server was killed.
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	return parseAudit(text)
}

// auditEvent is what we read of a line; k8s.io/apiserver/pkg/apis/audit/v1 documents the fields.
type auditEvent struct {
	AuditID                  string    `json:"auditID"`
	Verb                     string    `json:"verb"`
	UserAgent                string    `json:"userAgent"`
	RequestReceivedTimestamp time.Time `json:"requestReceivedTimestamp"`
	User                     struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
}

// parseAudit reads whole lines. A watch has one when it begins and one when it ends; the first counts.
func parseAudit(text []byte) ([]Request, error) {
	var requests []Request
	seen := map[string]bool{}
	for line := range bytes.Lines(text) {
		var e auditEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("reading the audit log: %w", err)
		}
		if seen[e.AuditID] {
			continue
		}
		seen[e.AuditID] = true
		r := Request{
			Time: e.RequestReceivedTimestamp, User: e.User.Username, Verb: e.Verb,
			Resource: e.ObjectRef.Resource, Code: e.ResponseStatus.Code,
		}
		r.Agent, _, _ = strings.Cut(e.UserAgent, "/")
		if e.ObjectRef.Subresource != "" {
			r.Resource += "/" + e.ObjectRef.Subresource
		}
		requests = append(requests, r)
	}
	slices.SortStableFunc(requests, func(a, b Request) int { return a.Time.Compare(b.Time) })
	return requests, nil
}

// A Tally counts like requests.
type Tally struct {
	Agent, Verb, Resource string
	Count                 int
}

// Count counts requests by program, verb and resource, and sorts the tallies by these.
func Count(requests []Request) []Tally {
	counts := map[Tally]int{}
	for _, r := range requests {
		counts[Tally{Agent: r.Agent, Verb: r.Verb, Resource: r.Resource}]++
	}
	tallies := make([]Tally, 0, len(counts))
	for t, n := range counts {
		t.Count = n
		tallies = append(tallies, t)
	}
	slices.SortFunc(tallies, func(a, b Tally) int {
		return cmp.Or(cmp.Compare(a.Agent, b.Agent), cmp.Compare(a.Verb, b.Verb), cmp.Compare(a.Resource, b.Resource))
	})
	return tallies
}

// SPDX-License-Identifier: Apache-2.0

// Command policy says what Cilium's own code says of policies: whether they allow flows. It reads cases as JSON, one after the other, and
// writes a list of verdicts for each.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/cilium/cilium/pkg/identity"
	"github.com/cilium/cilium/pkg/identity/identitymanager"
	"github.com/cilium/cilium/pkg/k8s"
	v2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	networkingv1 "github.com/cilium/cilium/pkg/k8s/slim/k8s/api/networking/v1"
	"github.com/cilium/cilium/pkg/labels"
	"github.com/cilium/cilium/pkg/option"
	"github.com/cilium/cilium/pkg/policy"
	"github.com/cilium/cilium/pkg/policy/api"
	"github.com/cilium/cilium/pkg/policy/types"
	"github.com/cilium/cilium/pkg/policy/utils"
	testidentity "github.com/cilium/cilium/pkg/testutils/identity"
	testpolicy "github.com/cilium/cilium/pkg/testutils/policy"
	"github.com/cilium/cilium/pkg/u8proto"
)

// clusterName is Cilium's default.
const clusterName = "default"

// A testCase is pods, policies and flows.
type testCase struct {
	Pods     []map[string]string // labels, with those that Cilium adds
	Policies []json.RawMessage
	Flows    []flow
}

// A flow is a query of a pod to another, or with a negative number to its node.
type flow struct {
	From, To int
	UDP      bool
	Port     uint16
}

func main() {
	option.Config.EnableNonDefaultDenyPolicies, option.Config.EnableICMPRules = true, true
	policy.SetPolicyEnabled(option.DefaultEnforcement)
	api.InitEntities(clusterName)
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var c testCase
		err := in.Decode(&c)
		if errors.Is(err, io.EOF) {
			return
		}
		var verdicts []bool
		if err == nil {
			verdicts, err = c.decide()
		}
		if err == nil {
			err = out.Encode(verdicts)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func (c *testCase) decide() ([]bool, error) {
	log := slog.New(slog.DiscardHandler)
	host := identity.LookupReservedIdentity(identity.ReservedIdentityHost)
	known := identity.IdentityMap{host.ID: host.LabelArray}
	ids := make([]*identity.Identity, 0, len(c.Pods))
	for i, p := range c.Pods {
		list := make(labels.LabelArray, 0, len(p))
		for k, v := range p {
			list = append(list, labels.NewLabel(k, v, labels.LabelSourceK8s))
		}
		id := identity.NewIdentityFromLabelArray(identity.NumericIdentity(1000+i), list.Sort())
		ids = append(ids, id)
		known[id.ID] = id.LabelArray
	}
	manager := identitymanager.NewIDManager(log)
	repo := policy.NewPolicyRepository(log, known, nil, nil, manager, testpolicy.NewPolicyMetricsNoop())
	repo.GetSelectorCache().SetLocalIdentityNotifier(testidentity.NewDummyIdentityNotifier())
	manager.Subscribe(testpolicy.SelectorCacheObserver{Cache: repo.GetSubjectSelectorCache()})
	for _, text := range c.Policies {
		entries, err := parse(log, text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", text, err)
		}
		repo.MustAddPolicyEntries(entries)
	}
	verdicts := make([]bool, 0, len(c.Flows))
	for _, f := range c.Flows {
		to, proto := host, u8proto.TCP
		if f.To >= 0 {
			to = ids[f.To]
		}
		if f.UDP {
			proto = u8proto.UDP
		}
		v, _, _, err := policy.LookupFlow(log, repo, manager, types.Flow{From: ids[f.From], To: to, Proto: proto, Dport: f.Port})
		if err != nil {
			return nil, err
		}
		verdicts = append(verdicts, v.Egress == types.DecisionAllowed && v.Ingress == types.DecisionAllowed)
	}
	return verdicts, nil
}

// parse reads a policy of any kind, as Cilium does.
func parse(log *slog.Logger, text []byte) (types.PolicyEntries, error) {
	var head struct{ Kind string }
	if err := json.Unmarshal(text, &head); err != nil {
		return nil, err
	}
	var rules api.Rules
	var err error
	switch head.Kind {
	case "NetworkPolicy":
		var p networkingv1.NetworkPolicy
		if err := json.Unmarshal(text, &p); err != nil {
			return nil, err
		}
		return k8s.ParseNetworkPolicy(log, clusterName, &p)
	case "CiliumNetworkPolicy":
		var p v2.CiliumNetworkPolicy
		if err := json.Unmarshal(text, &p); err != nil {
			return nil, err
		}
		rules, err = p.Parse(log, clusterName)
	default:
		var p v2.CiliumClusterwideNetworkPolicy
		if err := json.Unmarshal(text, &p); err != nil {
			return nil, err
		}
		rules, err = p.Parse(log, clusterName)
	}
	return utils.RulesToPolicyEntries(rules), err
}

// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// openVariants opens the wanted variant, or the one that the node uses, and the other one
// for its cleanup.
func (b *Backend) openVariants(wanted Variant, wait time.Duration) error {
	if wanted != "" && wanted != Nft && wanted != Legacy {
		return fmt.Errorf("variant %q is neither %s nor %s", wanted, Nft, Legacy)
	}
	stacks, err := openAllTables(wanted, wait, b.netns)
	if err != nil {
		return err
	}
	b.own = stacks[0]
	b.reason = fmt.Sprintf("iptables-%s is the only variant", b.own.variant)
	if len(stacks) == 2 {
		b.other = stacks[1]
		v, why := wanted, "it is configured"
		if wanted == "" {
			v, why = b.variantOfNode(stacks)
		}
		if v == Legacy {
			b.own, b.other = b.other, b.own
		}
		b.reason = why
	}
	return nil
}

// openAllTables opens the installed variants: at least one, and the wanted one. On an error
// it closes all.
func openAllTables(wanted Variant, wait time.Duration, in *netns) (stacks []*variantTables, err error) {
	var errs []error
	for _, v := range []Variant{Nft, Legacy} {
		s, err := openTables(v, wait, in)
		switch {
		case err == nil:
			stacks = append(stacks, s)
		case wanted == v:
			for _, s := range stacks {
				err = errors.Join(err, s.kernel.close())
			}
			return nil, err
		default:
			errs = append(errs, err)
		}
	}
	if len(stacks) == 0 {
		return nil, errors.Join(errs...)
	}
	return stacks, nil
}

// A variantHint is a chain that shows which variant a node uses.
type variantHint struct{ table, chain string }

// variantHints returns the chains of kube-proxy and of the kubelet. The first one found
// decides.
func variantHints() []variantHint {
	return []variantHint{{"nat", "KUBE-SERVICES"}, {"mangle", "KUBE-IPTABLES-HINT"}, {"mangle", "KUBE-KUBELET-CANARY"}}
}

func (b *Backend) variantOfNode(stacks []*variantTables) (Variant, string) {
	for _, sign := range variantHints() {
		for _, s := range stacks {
			if s.hasChain(sign) {
				return s.variant, fmt.Sprintf("%s is in iptables-%s", sign.chain, s.variant)
			}
		}
	}
	if path, err := locate("iptables"); err == nil {
		if v, err := modeOf(path); err == nil {
			return v, fmt.Sprintf("%s is iptables-%s", path, v)
		}
	}
	return stacks[0].variant, "no sign of the variant that this node uses"
}

// hasChain reports whether a chain exists. On an error it returns false.
func (s *variantTables) hasChain(sign variantHint) bool {
	for _, v6 := range []bool{false, true} {
		p := s.program(v6)
		if there, err := s.kernel.chainExists(v6, sign.table, sign.chain); err != nil || !there || p == nil {
			continue
		}
		if s.variant == Nft {
			return true
		}
		lines, err := p.save(context.Background(), sign.table, false)
		if err == nil && slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, ":"+sign.chain+" ") }) {
			return true
		}
	}
	return false
}

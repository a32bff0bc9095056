// SPDX-License-Identifier: Apache-2.0

// Package kernel answers the queries of pods in the kernel: a BPF program on the host end of each pod's veth gives ready answers of
// the hottest names, and leaves everything else untouched to the agent.
//
// The agent writes the answers. It takes each from its own resolver, see [Source], so they are byte-equal to the process's. An
// answer names the versions of the two things that it depends on: its name in the cache, and an object of the cluster or all of
// them. A change increments the version, with one store to memory that the kernel shares, before the new answer is published. So
// an outdated answer is never given, whatever the writer is doing.
//
// The cache says what has changed: [cache.Cache.Observe] names the answer or the owner, or nothing, which ends all answers, as
// another configuration does. For the zones that is not enough. A denial depends on all objects, and an owner is named only after
// readers see its change. So [Kernel.ZoneChanging] comes before that, and [Kernel.ZoneChanged] at the end, see [zone.Observer].
//
// Only an interface whose pod the agent has answered recently gets answers. A program at its egress sees the agent's reply, which
// proves that the node's rules and policies let the query pass.
//
// ADR 18 has the reasons.
package kernel

//go:generate go tool bpf2go -cc clang -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu" -target bpfel -type key -type answer -type client_key -type client -type holder -type destination -type address -type control -no-global-types hits bpf/hits.c

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/nodetest"
)

//go:generate go tool bpf2go -cc clang -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3" -target bpfel -no-global-types turn floor/turn.c

// podLink is the node's end of the pod's link.
const podLink = "pod0"

// attach attaches the program at the ingress of the pod's link until detach.
func attach(node *nodetest.Host, p *ebpf.Program) (detach func() error, err error) {
	err = node.Do(func() error {
		at, err := net.InterfaceByName(podLink)
		if err != nil {
			return err
		}
		l, err := link.AttachTCX(link.TCXOptions{Interface: at.Index, Program: p, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return err
		}
		detach = l.Close
		return nil
	})
	return detach, err
}

// runTime measures the mean time of the program at the pod's link while run runs. The statistics themselves take part of it.
func runTime(node *nodetest.Host, run func() error) (mean time.Duration, err error) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return 0, err
	}
	defer func() { _ = stats.Close() }()
	var program *ebpf.Program
	if err := node.Do(func() (err error) { program, err = programAt(podLink); return err }); err != nil {
		return 0, err
	}
	defer func() { _ = program.Close() }()
	before, err := program.Stats()
	if err == nil {
		err = run()
	}
	if err != nil {
		return 0, err
	}
	after, err := program.Stats()
	if err != nil {
		return 0, err
	}
	return (after.Runtime - before.Runtime) / time.Duration(max(1, after.RunCount-before.RunCount)), nil
}

// A passCost is what the agent's program costs a packet that it lets pass.
type passCost struct {
	What string
	Goal time.Duration
	Took time.Duration
}

// passRuns is how often the kernel runs the program for one figure.
const passRuns = 1_000_000

// passCosts runs the agent's program at the pod's link with packets that it lets pass. It has an answer to the known name, but not
// for this interface: such a query costs most.
func passCosts(node *nodetest.Host, known string) ([]passCost, error) {
	costs := []passCost{
		{What: "a datagram to another port", Goal: otherGoal},
		{What: "a query for another name", Goal: queryGoal},
		{What: "a query of a pod that is not permitted", Goal: queryGoal},
	}
	var packets [][]byte
	for _, at := range []struct {
		port uint16
		name string
	}{{443, known}, {53, "not-there." + known}, {53, known}} {
		packet, err := datagram(at.port, at.name)
		if err != nil {
			return nil, err
		}
		packets = append(packets, packet)
	}
	err := node.Do(func() error {
		program, err := programAt(podLink)
		if err != nil {
			return err
		}
		defer func() { _ = program.Close() }()
		for i, packet := range packets {
			verdict, took, err := program.Benchmark(packet, passRuns, nil)
			if err != nil {
				return err
			}
			if int32(verdict) != -1 {
				return fmt.Errorf("%s did not pass: %d", costs[i].What, verdict)
			}
			costs[i].Took = took
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("running the agent's program: %w", err)
	}
	return costs, nil
}

// programAt returns the program at the ingress of a link of the calling thread's namespace.
func programAt(name string) (*ebpf.Program, error) {
	at, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	found, err := link.QueryPrograms(link.QueryOptions{Target: at.Index, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return nil, err
	}
	if len(found.Programs) != 1 {
		return nil, fmt.Errorf("%s has %d programs", name, len(found.Programs))
	}
	return ebpf.NewProgramFromID(found.Programs[0].ID)
}

// datagram returns the frame of a query to the agent. The program reads no checksum of a packet that it lets pass.
func datagram(port uint16, name string) ([]byte, error) {
	query, err := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA).Pack()
	if err != nil {
		return nil, err
	}
	const ethernet, ip, udp = 14, 20, 8
	frame := make([]byte, ethernet+ip+udp, ethernet+ip+udp+len(query))
	binary.BigEndian.PutUint16(frame[12:], 0x0800) // IPv4
	header := frame[ethernet:]
	header[0], header[8], header[9] = 0x45, 64, 17 // version and length, hops, UDP
	binary.BigEndian.PutUint16(header[2:], uint16(ip+udp+len(query)))
	copy(header[12:], []byte{10, 200, 0, 2})
	copy(header[16:], kernelAddr().AsSlice())
	binary.BigEndian.PutUint16(header[ip:], 40_000)
	binary.BigEndian.PutUint16(header[ip+2:], port)
	binary.BigEndian.PutUint16(header[ip+4:], uint16(udp+len(query)))
	return append(frame, query...), nil
}

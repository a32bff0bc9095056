// SPDX-License-Identifier: Apache-2.0

// Package policytest makes random clusters with NetworkPolicies, for tests of what policies say to DNS.
package policytest

package bpf

var archCallNames map[int]string

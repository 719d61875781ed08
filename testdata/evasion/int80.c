/* Calls of another table than the filter's: 32-bit, and x32. */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>
#include <sys/syscall.h>

int main(void)
{
	long ret = -1;
#ifdef __x86_64__
	__asm__ volatile("int $0x80" : "=a"(ret) : "a"(5), "b"("/etc/passwd"), "c"(0), "d"(0) : "memory");
	printf("%ld\n", ret);
	errno = 0;
	ret = syscall(0x40000000 | 41, 17, 3, 0);
	printf("%ld %d\n", ret, errno);
#endif
	return 0;
}

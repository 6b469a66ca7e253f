/* A firmware of 64 KiB that shows whether a processor runs a guest, and at which speed: real mode, protected mode, long mode with
 * paging, a timer interrupt. It writes a letter to port 0xe9 after each and ends QEMU through the device isa-debug-exit.
 *
 * The loops take a tenth of a second on a processor and a second in emulation. An accelerator that emulates such a guest one
 * instruction at a time, as KVM without hardware support does, needs minutes for them.
 */
#define SEGMENT 0xf0000                 /* the firmware's copy below 1 MiB */
#define TABLES 0x1000                   /* four pages: PML4, directory pointers, the first GiB, the fourth GiB with the APIC */
#define INTERRUPTS 0x8000
#define STACK 0x90000
#define APIC_PAGE 0xfee00000
#define SAY(letter) movb $letter, %al; outb %al, $0xe9

        .code16
start:  cli
        movw $(SEGMENT >> 4), %ax
        movw %ax, %ds
        SAY('r')
        lgdtl segments
        movl %cr0, %eax
        orl $1, %eax
        movl %eax, %cr0
        ljmpl $8, $(protected + SEGMENT)

        .code32
protected:
        movl $16, %eax
        movl %eax, %ds
        movl %eax, %es
        movl %eax, %ss
        movl $STACK, %esp
        movl $20000000, %ecx
1:      decl %ecx
        jnz 1b
        SAY('p')
        movl $TABLES, %edi
        xorl %eax, %eax
        movl $4096, %ecx
        rep stosl
        movl $(TABLES + 0x1003), TABLES
        movl $(TABLES + 0x2003), TABLES + 0x1000
        movl $(TABLES + 0x3003), TABLES + 0x1018
        movl $(APIC_PAGE + 0x83), TABLES + 0x3000 + ((APIC_PAGE >> 21) & 511) * 8
        movl $(TABLES + 0x2000), %edi
        movl $0x83, %eax                /* pages of 2 MiB */
        movl $512, %ecx
2:      movl %eax, (%edi)
        addl $0x200000, %eax
        addl $8, %edi
        loop 2b
        movl $TABLES, %eax
        movl %eax, %cr3
        movl %cr4, %eax
        orl $0x20, %eax
        movl %eax, %cr4
        movl $0xc0000080, %ecx          /* EFER.LME */
        rdmsr
        orl $0x100, %eax
        wrmsr
        movl %cr0, %eax
        orl $0x80000000, %eax
        movl %eax, %cr0
        ljmpl $24, $(long + SEGMENT)

        .code64
long:   movl $50000000, %ecx
3:      decl %ecx
        jnz 3b
        SAY('l')
        movl $(INTERRUPTS + 0x200), %edi        /* vector 0x20 */
        leaq tick(%rip), %rax
        movw %ax, (%rdi)
        movw $24, 2(%rdi)
        movw $0x8e00, 4(%rdi)
        shrq $16, %rax
        movw %ax, 6(%rdi)
        movq $0, 8(%rdi)
        lidt gates(%rip)
        movl $APIC_PAGE, %edi                   /* the legacy interrupt controller through the local APIC */
        movl $0x1ff, 0xf0(%rdi)
        movl $0x700, 0x350(%rdi)
        .irp write, 0x1120, 0x2021, 0x0421, 0x0121, 0xfe21, 0x3443, 0x0040, 0x1040
        movb $(\write >> 8), %al                /* its first line alone; the timer 280 times a second */
        outb %al, $(\write & 0xff)
        .endr
        sti
idle:   hlt
        jmp idle
tick:   SAY('t')
        movb $0x10, %al
        outb %al, $0xf4
        jmp idle

        .balign 8
table:  .quad 0
        .quad 0x00cf9b000000ffff
        .quad 0x00cf93000000ffff
        .quad 0x00af9b000000ffff
segments:
        .word 31
        .long table + SEGMENT
gates:  .word 0x21f
        .quad INTERRUPTS

        .org 0xfff0
        .code16
        ljmpw $(SEGMENT >> 4), $start
        .org 0x10000
